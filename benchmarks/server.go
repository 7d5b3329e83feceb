package main

import (
	"context"
	"fmt"
	"os"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/internal/redisserver"
)

var ctx = context.Background()

// server is the Redis server that everything runs on. It is the benchmarks' own: they empty it, and
// read its statistics.
type server struct{ *redisserver.Server }

// startServer uses the server at REDIS_ADDR, or starts one without persistence.
func startServer() (*server, error) {
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		s, err := redisserver.Use(addr)
		if err != nil {
			return nil, err
		}
		return &server{s}, nil
	}
	s, err := redisserver.Start()
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	return &server{s}, nil
}
