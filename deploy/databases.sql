-- PostgreSQL runs this once, when its folder is empty. The ledger is the database that the server is made with; Dagster has
-- one of its own: both have a table `runs`.
CREATE DATABASE dagster;
