// Order-timeout cancels orders that are not paid within a second:
//
//	go run ./examples/order-timeout
//
// Placing an order publishes a message that is due when the time to pay is over. A payment does not
// cancel that message: the handler checks the order, and does nothing if it is paid.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if every order ended correctly, with 1 if not, with 130 if it was interrupted.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

const (
	timeoutsTopic = "order-timeouts"
	paymentsTopic = "payments"

	timeToPay = time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "order-timeout")
	if err != nil {
		return err
	}
	defer server.Close(logger)
	log := watermill.NewSlogLogger(logger)

	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(publisher, logger)

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:    server.Client,
		KeyPrefix: server.KeyPrefix,
	}, log)
	if err != nil {
		return err
	}
	defer example.CloseLogged(subscriber, logger)

	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	s := newShop(publisher, done)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("cancel-unpaid-orders", timeoutsTopic, subscriber, s.onTimeout)
	router.AddConsumerHandler("take-payments", paymentsTopic, subscriber, s.onPayment)

	if err := s.open(); err != nil {
		return err
	}
	if err := router.Run(running); err != nil {
		return err
	}
	return s.summary(why())
}
