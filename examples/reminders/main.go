// Reminders runs a clinic's calendar on Watermill's CQRS component, with delayed commands and
// events:
//
//	go run ./examples/reminders
//
// When an appointment is booked, an event handler sends a delayed command to remind the patient. It
// also publishes a delayed event for the end of the appointment. The delay is in the context
// (delay.WithContext), because a CQRS bus takes no other option. Each event handler has its own
// consumer group, so each gets every event. For an appointment that was cancelled meanwhile, the
// handlers send no reminder and no bill.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if the result is right, with 1 if not, with 130 if it was interrupted.
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
	case <-router.Running(): // from here on all groups exist and get every message
	case err := <-ended: // it could not start, and Running is never closed
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

// open books two appointments, and cancels the second after a while.
func (c *clinic) open(ctx context.Context) error {
	for id, patient := range map[string]string{"1": "Ann", "2": "Ben"} {
		if err := c.events.Publish(ctx, c.book(id, patient)); err != nil {
			return err
		}
	}
	later := delay.WithContext(ctx, delay.For(250*time.Millisecond))
	return c.commands.Send(later, &CancelAppointment{ID: "2"})
}
