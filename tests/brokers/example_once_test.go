package brokers

import wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"

// onceSchema inserts each message of a relay once. The table needs a unique index on the ID.
type onceSchema struct{ wsql.DefaultPostgreSQLSchema }

func (s onceSchema) InsertQuery(params wsql.InsertQueryParams) (wsql.Query, error) {
	query, err := s.DefaultPostgreSQLSchema.InsertQuery(params)
	query.Query += ` ON CONFLICT DO NOTHING`
	return query, err
}
