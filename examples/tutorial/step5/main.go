// Shop takes orders, and cancels those that are not paid in time.
package main

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logFile, err := os.OpenFile("shop.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(err)
	client := redis.NewClient(&redis.Options{Addr: cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")})
	s, err := newShop(client, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(logFile, nil))))
	check(err)

	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "place":
		timeToPay, err := time.ParseDuration(args[2])
		check(err)
		check(s.place(ctx, args[1], timeToPay))
	case len(args) == 2 && args[0] == "pay":
		check(s.pay(args[1]))
	case len(args) == 1 && args[0] == "serve":
		check(s.serve(ctx))
	default:
		log.Fatalf("the shop knows no such command: %q", args)
	}
	check(s.publisher.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
