// Delayed-command is Watermill's own example of delayed messages on this library: an event handler
// sends a command that is handled some time later.
//
//	go run ./examples/delayed-command
//
// Some time after an order, the shop asks the customer for feedback. The original example uses one
// Pub/Sub for events and another, with delays, for commands. Here one Pub/Sub does both. Only the
// context of the command has a delay.
//
// It runs on a Redis inside this process, or on the one at REDIS_ADDR, where it deletes its keys.
// It exits with 0 if every customer was asked and none early, with 1 if not, with 130 if it was
// interrupted.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// feedbackAfter is how long after an order the customer is asked. In reality it is a week.
const feedbackAfter = 750 * time.Millisecond

// OrderPlaced is an event.
type OrderPlaced struct {
	OrderID  string   `json:"order_id"`
	Customer Customer `json:"customer"`
}

// Customer is the customer of an order.
type Customer struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// SendFeedbackForm is a command.
type SendFeedbackForm struct {
	To      string `json:"to"`
	Name    string `json:"name"`
	OrderID string `json:"order_id"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	example.Exit(ctx, logger, run(ctx, logger))
}

func run(ctx context.Context, logger *slog.Logger) error {
	server, err := example.Connect(ctx, "delayed-command")
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

	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	buses, err := newBuses(router, publisher, subscriber, log)
	if err != nil {
		return err
	}

	running, done, why := example.Until(ctx, 10*time.Second)
	defer done()
	s := newShop(buses.commands, done)
	if err := buses.handlers(s); err != nil {
		return err
	}
	for _, order := range []OrderPlaced{
		{OrderID: "1", Customer: Customer{Name: "Ann", Email: "ann@example.com"}},
		{OrderID: "2", Customer: Customer{Name: "Ben", Email: "ben@example.com"}},
		{OrderID: "3", Customer: Customer{Name: "Eve", Email: "eve@example.com"}},
	} {
		s.placed(order)
		if err := buses.events.Publish(ctx, order); err != nil {
			return err
		}
	}
	if err := router.Run(running); err != nil {
		return err
	}
	return s.summary(why())
}

// buses has the buses for commands and events, and their processors.
type buses struct {
	events           *cqrs.EventBus
	commands         *cqrs.CommandBus
	eventProcessor   *cqrs.EventProcessor
	commandProcessor *cqrs.CommandProcessor
}

func newBuses(router *message.Router, publisher message.Publisher, subscriber message.Subscriber, log watermill.LoggerAdapter) (b buses, err error) {
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	if b.events, err = cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		Marshaler:            marshaler,
		Logger:               log,
	}); err != nil {
		return b, err
	}
	if b.eventProcessor, err = cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
		SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscriber, nil
		},
		Marshaler: marshaler,
		Logger:    log,
	}); err != nil {
		return b, err
	}
	if b.commands, err = cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return p.CommandName, nil },
		Marshaler:            marshaler,
		Logger:               log,
	}); err != nil {
		return b, err
	}
	b.commandProcessor, err = cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return p.CommandName, nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscriber, nil
		},
		Marshaler: marshaler,
		Logger:    log,
	})
	return b, err
}

// handlers registers the shop's handlers.
func (b buses) handlers(s *shop) error {
	if err := b.eventProcessor.AddHandlers(
		cqrs.NewEventHandler("OnOrderPlaced", s.onOrderPlaced),
	); err != nil {
		return err
	}
	return b.commandProcessor.AddHandlers(
		cqrs.NewCommandHandler("OnSendFeedbackForm", s.onSendFeedbackForm),
	)
}

// onOrderPlaced sends the command with a delay.
func (s *shop) onOrderPlaced(ctx context.Context, event *OrderPlaced) error {
	ctx = delay.WithContext(ctx, delay.For(feedbackAfter))
	return s.commands.Send(ctx, &SendFeedbackForm{
		To:      event.Customer.Email,
		Name:    event.Customer.Name,
		OrderID: event.OrderID,
	})
}
