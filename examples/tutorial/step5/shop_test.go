package main

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

func TestOrderAndTimeoutAreNeverApart(t *testing.T) {
	server := redisdelaytest.Start(t)
	s, err := newShop(server.Client(), watermill.NopLogger{})
	check(err)
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.serve(serving) }()

	check(s.place(serving, "A-7", time.Hour))
	dead, die := context.WithCancel(serving)
	die() // place ends between its two steps
	if err := s.place(dead, "A-8", time.Hour); err == nil {
		t.Error("A-8 is placed")
	}
	server.Advance(time.Hour)
	server.AwaitDrained(t, "timeouts")

	for _, id := range []string{"A-7", "A-8"} {
		if status, err := s.set(serving, id, "unpaid"); status != "cancelled" {
			t.Error(id, status, err)
		}
	}
	stop()
	check(<-served)
	check(s.publisher.Close())
}
