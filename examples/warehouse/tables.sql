CREATE SCHEMA depot;
CREATE SCHEMA journal;
CREATE TABLE depot.shelves (
    site text,
    bin integer,
    zone text NOT NULL,
    capacity_kg double precision,
    PRIMARY KEY (site, bin)
);
CREATE TABLE depot.stock (
    site text,
    bin integer,
    quantity integer NOT NULL,
    reserved integer NOT NULL DEFAULT 0,
    blocked_until date,
    "Item Code" text,
    PRIMARY KEY (site, bin)
);
CREATE TABLE depot.hazards (code text PRIMARY KEY, description text);
CREATE TABLE depot.stock_hazards (
    site text,
    bin integer,
    code text REFERENCES depot.hazards,
    PRIMARY KEY (site, bin, code),
    FOREIGN KEY (site, bin) REFERENCES depot.stock
);
CREATE TABLE journal.moves (
    site text,
    bin integer,
    number integer,
    moved_on date NOT NULL,
    difference integer NOT NULL,
    reason text,
    PRIMARY KEY (site, bin, number)
);
CREATE INDEX ON depot.stock_hazards (code);
