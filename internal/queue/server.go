package queue

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server describes the server of a topic.
type Server struct {
	Info map[string]string // memory, persistence and replication of INFO; managed servers forbid CONFIG
	// Denied is ErrForbidden if the user may not read INFO, else nil.
	Denied error
	Clock  time.Duration // how far its clock is ahead of this machine's, at least
}

// Replica tells that the server is a replica.
func (s Server) Replica() bool { return s.Info["role"] == "slave" }

// MasterAddress is the address of the master of a replica.
func (s Server) MasterAddress() string {
	return net.JoinHostPort(s.Info["master_host"], s.Info["master_port"])
}

// Key returns a key of the topic, by which a Cluster's node that has the topic is found.
func (t *Topic) Key() string { return t.keys.Meta() }

// OnlyServer is the Master of all topics without a Cluster.
const OnlyServer = ""

// Master returns the address of the node of a Cluster that has the topic, as far as the client
// knows.
func (t *Topic) Master(ctx context.Context) (string, error) {
	if !t.client.Cluster() {
		return OnlyServer, nil
	}
	node, err := t.client.Node(ctx, t.Key())
	if err != nil {
		return "", err
	}
	return node.Addr(), nil
}

// Server asks the server that has the topic about itself.
func (t *Topic) Server(ctx context.Context) (Server, error) {
	s := Server{Info: map[string]string{}}
	sent := time.Now()
	now, err := AskMaster(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
		return c.Time(ctx).Result()
	})
	if err != nil {
		return Server{}, err
	}
	answered := time.Now()
	switch {
	case now.After(answered):
		s.Clock = now.Sub(answered)
	case now.Before(sent):
		s.Clock = now.Sub(sent)
	}
	for _, section := range []string{"memory", "persistence", "replication"} {
		text, err := AskMaster(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) (string, error) {
			return c.Info(ctx, section).Result()
		})
		if err != nil {
			if Unreachable(err) {
				return Server{}, err
			}
			if err := RefusedTo("ask the server about itself", "info", err); errors.Is(err, ErrForbidden) {
				s.Denied = err
			}
			continue // the server has no such section, or does not let us see it
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				s.Info[name] = value
			}
		}
	}
	return s, nil
}
