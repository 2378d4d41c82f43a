import java.io.FileReader;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * Serves a catalog in SQLite by Iceberg's REST protocol: PORT, FILE of the database, WAREHOUSE, FILE of Hadoop's settings. It is
 * compiled when it is run.
 */
public class RestCatalogServer {
  public static void main(String[] given) throws Exception {
    Properties settings = new Properties();
    try (FileReader reader = new FileReader(given[3])) {
      settings.load(reader);
    }
    Configuration hadoop = new Configuration();
    settings.forEach((name, value) -> hadoop.set((String) name, (String) value));
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(hadoop);
    catalog.initialize(
        "lake",
        Map.of("uri", "jdbc:sqlite:" + given[1], "warehouse", given[2], "jdbc.schema-version", "V1"));
    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }
}
