// Reminders runs a clinic's calendar on Watermill's CQRS component, with delayed commands and events:
//
//	go run ./examples/reminders
//
// When an appointment is booked, an event handler sends a command that is handled some time before the
// appointment, and publishes an event for when it is over. The delay is in the context, which is all
// that a CQRS bus takes: delay.WithContext. Each event handler has a consumer group of its own, so each
// gets each event. An appointment that was cancelled meanwhile brings no reminder and no bill, for the
// handlers look it up.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, which it leaves as it was. It
// exits with 0 when all went as it should, with 1 if not, with 130 when it was interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "reminders")
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

	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	// The router closes the subscribers of its handlers.
	b, err := newBuses(router, publisher, func(group string) (message.Subscriber, error) {
		return redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
			Client:        server.Client,
			KeyPrefix:     server.KeyPrefix,
			ConsumerGroup: group,
		}, log)
	}, log)
	if err != nil {
		return err
	}

	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	c := newClinic(b, done)
	if err := b.addHandlers(c); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(running) }()
	select {
	case <-router.Running(): // from here on all groups exist, so each gets what is published
	case err := <-ended: // it could not start: Running stays open then
		return cmp.Or(err, why())
	}

	if err := c.open(ctx); err != nil {
		done()
		return errors.Join(err, <-ended)
	}
	if err := <-ended; err != nil {
		return err
	}
	return c.summary(why())
}

// open books two appointments, and plays the second patient, who calls after a while to cancel.
func (c *clinic) open(ctx context.Context) error {
	for id, patient := range map[string]string{"1": "Ann", "2": "Ben"} {
		if err := c.events.Publish(ctx, c.book(id, patient)); err != nil {
			return err
		}
	}
	later := delay.WithContext(ctx, delay.For(250*time.Millisecond))
	return c.commands.Send(later, &CancelAppointment{ID: "2"})
}
