package servers

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

// Server describes a server.
type Server struct {
	Info map[string]string // memory, persistence and replication of INFO; managed servers forbid CONFIG
	// Denied is refusal.ErrForbidden if the user may not read INFO, else nil.
	Denied error
	Clock  time.Duration // how far its clock is ahead of this machine's, at least
}

// ReplicaOf is the address of the server's master; "" if the server is no replica, or does not say.
func (s Server) ReplicaOf() string {
	if s.Info["role"] != "slave" {
		return ""
	}
	return net.JoinHostPort(s.Info["master_host"], s.Info["master_port"])
}

// OnlyServer is the Master of all keys without a Cluster.
const OnlyServer = ""

// Master returns the address of the node of a Cluster that has a key, as far as the client knows.
func (c *Client) Master(ctx context.Context, key string) (string, error) {
	if c.cluster == nil {
		return OnlyServer, nil
	}
	node, err := c.Node(ctx, key)
	if err != nil {
		return "", err
	}
	return node.Addr(), nil
}

// Server asks the server that has a key about itself.
func (c *Client) Server(ctx context.Context, key string) (Server, error) {
	s := Server{Info: map[string]string{}}
	sent := time.Now()
	now, err := AskMaster(ctx, c, key, func(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
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
		if err := s.ask(ctx, c, key, section); err != nil {
			return Server{}, err
		}
	}
	return s, nil
}

// ReplicaOf returns the address of the master of the server that has a key; "" if the server is no
// replica, or does not say.
func (c *Client) ReplicaOf(ctx context.Context, key string) (string, error) {
	if c.cluster != nil { // its client asks masters
		return "", nil
	}
	s := Server{Info: map[string]string{}}
	err := s.ask(ctx, c, key, "replication")
	return s.ReplicaOf(), err
}

// ask asks for a section of INFO, which the server may lack or not let us see.
func (s *Server) ask(ctx context.Context, c *Client, key, section string) error {
	text, err := AskMaster(ctx, c, key, func(ctx context.Context, c redis.UniversalClient) (string, error) {
		return c.Info(ctx, section).Result()
	})
	if err != nil {
		if Unreachable(err) {
			return err
		}
		if err := refusal.To("ask the server about itself", "info", err); errors.Is(err, refusal.ErrForbidden) {
			s.Denied = err
		}
		return nil
	}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			s.Info[name] = value
		}
	}
	return nil
}
