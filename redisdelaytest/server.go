package redisdelaytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Config configures a Server. The zero value is right for most tests.
type Config struct {
	// KeyPrefix is the prefix of the program under test. Default redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Unmarshaler reads the messages of the program under test. Default
	// redisdelay.BinaryMarshaler{}.
	Unmarshaler redisdelay.Unmarshaler

	// Now is the initial time of the server's clock. Default the present time, because delays from
	// Watermill's own components use the program's clock.
	Now time.Time
}

// Validate reports all faults of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error { return field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)) }

// Server is a Redis server in this process, with a clock that stands still. Its methods are safe
// for concurrent use, except those that move the clock.
//
// On an error, methods fail the test that was given to Start. On a Server of New they panic.
type Server struct {
	mini     *miniredis.Miniredis
	client   *servers.Client
	admin    *admin.Admin
	prefix   string
	fail     func(error)
	moving   sync.RWMutex  // held while the clock and the leases are moved
	patience time.Duration // how long programs may take to settle at one time of the clock
}

// Start returns a server that is closed when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith returns a server with a configuration, which is closed when the test ends.
func StartWith(t testing.TB, config Config) *Server {
	t.Helper()
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	s.fail = func(err error) {
		t.Helper()
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// New returns a server outside of a test, such as for an Example. The caller must close it. Errors
// about the Config wrap redisdelay.ErrInvalidConfig.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	now := config.Now
	if now.IsZero() {
		now = time.Now()
	}
	mini.SetTime(now.Truncate(time.Millisecond))
	// The server runs one command at a time in this process, so it may be slow on a busy machine.
	client := redis.NewClient(&redis.Options{Addr: mini.Addr(), ReadTimeout: 30 * time.Second})
	s := &Server{
		mini:     mini,
		client:   servers.MustClient(client),
		prefix:   cmp.Or(config.KeyPrefix, redisdelay.DefaultKeyPrefix),
		fail:     func(err error) { panic(err) },
		patience: awaitTimeout,
	}
	mini.Server().SetPreHook(s.awaitMove)
	var err error
	s.admin, err = admin.New(admin.Config{Client: s.Client(), KeyPrefix: config.KeyPrefix, Unmarshaler: config.Unmarshaler})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	return s, nil
}

// Close stops the server. Close its users first.
func (s *Server) Close() {
	_ = s.Client().Close() // errors do not matter any more
	s.mini.Close()
}

// Client returns a client of the server. The server closes it.
func (s *Server) Client() redis.UniversalClient { return s.client.User() }

// Addr returns the server's address, for the program's own clients.
func (s *Server) Addr() string { return s.mini.Addr() }

// Admin returns an Admin for the server's topics.
func (s *Server) Admin() *admin.Admin { return s.admin }

// topic is a topic with its keys.
type topic struct {
	*queue.Topic
	keys queue.Keys
}

func (s *Server) topic(prefix, name string) topic {
	return topic{queue.NewTopic(s.client, prefix, name), queue.NewKeys(prefix, name)}
}

// topics returns the topics of every prefix. It ignores topics that do not exist, because a key of
// the program may be named like a registry.
func (s *Server) topics(ctx context.Context) ([]topic, error) {
	var topics []topic
	for _, key := range s.mini.Keys() {
		prefix, ok := strings.CutSuffix(key, ":topics")
		if !ok || key != queue.Registry(prefix) || strings.Contains(key, "{") {
			continue
		}
		names, err := s.mini.Members(key)
		if err != nil {
			continue // not a set
		}
		for _, name := range names {
			t := s.topic(prefix, name)
			if _, err := t.Existing(ctx); errors.Is(err, queue.ErrNotFound) {
				continue
			} else if err != nil {
				return nil, err
			}
			topics = append(topics, t)
		}
	}
	return topics, nil
}
