package brokers

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/relay"
)

var postgresBroker = broker{
	start: func(t *testing.T) server { return startPostgres(t) },
	newPublisher: func(addr string) (message.Publisher, error) {
		return postgresPublisher(addr, schema)
	},
	newSubscriber: func(addr string) (message.Subscriber, error) {
		db, err := sql.Open("postgres", addr)
		if err != nil {
			return nil, err
		}
		subscriber, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
			ConsumerGroup:    "consumers",
			SchemaAdapter:    schema,
			OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true,
			PollInterval:     20 * time.Millisecond,
			RetryInterval:    50 * time.Millisecond,
		}, nil)
		return closingDB{Subscriber: subscriber, db: db}, err
	},
	permanent: func(err error) bool {
		var refused *pq.Error
		return errors.As(err, &refused) && refused.Code.Class() == "22" || // data that the columns do not take
			errors.Is(err, wsql.ErrInvalidTopicName)
	},
	refused: map[string]refusal{
		"too long a UUID": {
			make: func(msg *message.Message) { msg.UUID = strings.Repeat("x", 37) },
			why:  "value too long for type character varying(36)",
		},
	},
	addTopic: addTables,
}

// addTables makes the tables of a topic.
func addTables(t *testing.T, addr, topic string) {
	t.Helper()
	db, err := sql.Open("postgres", addr)
	require.NoError(t, err)
	subscriber, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, nil)
	require.NoError(t, err)
	require.NoError(t, subscriber.SubscribeInitialize(topic))
	require.NoError(t, subscriber.Close())
	require.NoError(t, db.Close())
}

// postgresOnceBroker is one whose table refuses what it has already.
var postgresOnceBroker = broker{
	start: func(t *testing.T) server {
		p := startPostgres(t)
		_, err := p.admin.Exec(`CREATE UNIQUE INDEX ON ` + schema.MessagesTable(topic) + ` ((metadata->>'` + relay.IDKey + `'))`)
		require.NoError(t, err)
		return p
	},
	newPublisher: func(addr string) (message.Publisher, error) {
		return postgresPublisher(addr, onceSchema{schema})
	},
	newSubscriber: postgresBroker.newSubscriber,
	once:          true,
}

// schema takes any payload; by default only JSON is one.
var schema = wsql.DefaultPostgreSQLSchema{
	GeneratePayloadType: func(string) string { return "BYTEA" },
	SubscribeBatchSize:  inConsumersHands,
}

func postgresPublisher(addr string, adapter wsql.SchemaAdapter) (message.Publisher, error) {
	db, err := sql.Open("postgres", addr)
	if err != nil {
		return nil, err
	}
	// Without AutoInitializeSchema a misspelt topic is an error, and no new table.
	publisher, err := wsql.NewPublisher(wsql.BeginnerFromStdSQL(db), wsql.PublisherConfig{SchemaAdapter: adapter}, nil)
	return closingDB{Publisher: publisher, db: db}, err
}

// closingDB closes its database with its Publisher or Subscriber.
type closingDB struct {
	message.Publisher
	message.Subscriber
	db *sql.DB
}

func (c closingDB) Close() error {
	if c.Publisher != nil {
		return errors.Join(c.Publisher.Close(), c.db.Close())
	}
	return errors.Join(c.Subscriber.Close(), c.db.Close())
}

// postgres is a database of its own, and a user of it, on the PostgreSQL at POSTGRES_URL.
type postgres struct {
	admin *sql.DB // of that database, as the superuser
	name  string  // of the database and of its user
	url   url.URL
}

var postgresDatabases atomic.Int32

func startPostgres(t *testing.T) *postgres {
	t.Helper()
	address, err := url.Parse(os.Getenv("POSTGRES_URL"))
	require.NoError(t, err)
	if address.Host == "" {
		const missing = "no PostgreSQL: scripts/with-postgres.sh before the command starts one"
		require.NotEqual(t, "1", os.Getenv("REDISTEST_REQUIRED"), missing)
		t.Skip(missing + ": LEFT OUT")
	}
	server, err := sql.Open("postgres", address.String())
	require.NoError(t, err)
	p := &postgres{name: fmt.Sprintf("brokers_%d_%d", os.Getpid(), postgresDatabases.Add(1))}
	for _, statement := range []string{`CREATE ROLE ` + p.name + ` LOGIN`, `CREATE DATABASE ` + p.name + ` OWNER ` + p.name} {
		_, err = server.Exec(statement)
		require.NoError(t, err)
	}
	address.Path = "/" + p.name
	p.admin, err = sql.Open("postgres", address.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.admin.Close()
		_, err := server.Exec(`DROP DATABASE ` + p.name + ` WITH (FORCE)`)
		require.NoError(t, err)
		_, err = server.Exec(`DROP ROLE ` + p.name)
		require.NoError(t, err)
		_ = server.Close()
	})
	p.url = *address
	p.url.User = url.User(p.name)
	addTables(t, p.addr(), topic)
	return p
}

func (p *postgres) addr() string { return p.url.String() }

// restart ends all connections, and refuses new ones for a second.
func (p *postgres) restart(t *testing.T) {
	defer p.throttle(t)()
	time.Sleep(time.Second) // the time that a restart takes
}

// throttle ends all connections, and refuses new ones as too many, until relent is called.
func (p *postgres) throttle(t *testing.T) (relent func()) {
	t.Helper()
	limit := func(n int) {
		_, err := p.admin.Exec(fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT %d`, p.name, n))
		require.NoError(t, err)
	}
	limit(0)
	_, err := p.admin.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, p.name)
	require.NoError(t, err)
	return func() { limit(-1) }
}

// stall locks the table of the topic until resume is called.
func (p *postgres) stall(t *testing.T) (resume func()) {
	t.Helper()
	tx, err := p.admin.Begin()
	require.NoError(t, err)
	_, err = tx.Exec(`LOCK TABLE ` + schema.MessagesTable(topic) + ` IN SHARE MODE`)
	require.NoError(t, err)
	return func() { require.NoError(t, tx.Rollback()) }
}
