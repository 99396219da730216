CREATE TABLE venues (
    id uuid PRIMARY KEY,
    name jsonb NOT NULL,
    rank text,
    closed boolean NOT NULL DEFAULT false,
    kept boolean NOT NULL DEFAULT false,
    latitude double precision,
    longitude double precision,
    entrance point,
    attributes jsonb,
    rating_raw numeric,
    thumbnail bytea,
    floor smallint,
    height_m real
);
-- The deployment does not let Penstock make the publication (manage_publication = false).
CREATE PUBLICATION penstock FOR TABLE venues;
