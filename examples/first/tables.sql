CREATE TABLE people (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text,
    born date
);
