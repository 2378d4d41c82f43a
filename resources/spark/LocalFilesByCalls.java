package org.apache.hadoop.fs;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's local file system, which gives a file its permissions by a system call, and not by starting `chmod` for each. */
public class LocalFilesByCalls extends RawLocalFileSystem {
    private static final int SET_IDS = 06000;

    /** Does what `chmod` does, which leaves a folder the bit by which files in it get its group. */
    public void setPermission(Path path, FsPermission permission) throws IOException {
        java.nio.file.Path file = pathToFile(path).toPath();
        LinkOption[] followed = new LinkOption[0];
        int kept = Files.isDirectory(file, followed)
            ? ((Integer) Files.getAttribute(file, "unix:mode", followed)).intValue() & SET_IDS : 0;
        Files.setAttribute(file, "unix:mode", Integer.valueOf(kept | permission.toShort()), followed);
    }
}
