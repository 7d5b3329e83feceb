package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"
)

// openDatabase makes a schema with the shop's tables. remove removes it.
func openDatabase(ctx context.Context, address string) (db *sql.DB, remove func(), err error) {
	if address == "" {
		return nil, nil, errors.New("POSTGRES_URL is not set: begin the command with scripts/with-postgres.sh")
	}
	own := "outbox_" + strings.ToLower(watermill.NewULID())
	db, err = openSchema(ctx, address, own)
	if err != nil {
		return nil, nil, err
	}
	return db, func() {
		_, _ = db.Exec(`DROP SCHEMA IF EXISTS ` + pq.QuoteIdentifier(own) + ` CASCADE`)
		_ = db.Close()
	}, nil
}

// openSchema connects to a schema, and makes it and its tables if they are missing.
func openSchema(ctx context.Context, address, name string) (*sql.DB, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("search_path", name)
	u.RawQuery = query.Encode()
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `
		CREATE SCHEMA IF NOT EXISTS `+pq.QuoteIdentifier(name)+`;
		CREATE TABLE IF NOT EXISTS orders (
			id       text PRIMARY KEY,
			paid     boolean NOT NULL DEFAULT false,
			reminded boolean NOT NULL DEFAULT false
		);
		CREATE TABLE IF NOT EXISTS mails (order_id text NOT NULL)`)
	if err == nil {
		err = createOutbox(ctx, db)
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}
