package main

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
)

// buses has the buses for commands and events, and their processors.
type buses struct {
	events           *cqrs.EventBus
	commands         *cqrs.CommandBus
	eventProcessor   *cqrs.EventProcessor
	commandProcessor *cqrs.CommandProcessor
}

// newBuses returns the buses. Each kind of event or command has a topic, and each handler a
// consumer group. subscribe returns the subscriber of a group.
func newBuses(
	router *message.Router,
	publisher message.Publisher,
	subscribe func(group string) (message.Subscriber, error),
	log watermill.LoggerAdapter,
) (*buses, error) {
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	events, err1 := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
		Marshaler: marshaler,
		Logger:    log,
	})
	eventProcessor, err2 := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscribe(p.HandlerName)
		},
		Marshaler: marshaler,
		Logger:    log,
	})
	commands, err3 := cqrs.NewCommandBusWithConfig(publisher, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		Marshaler: marshaler,
		Logger:    log,
	})
	commandProcessor, err4 := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscribe(p.HandlerName)
		},
		Marshaler: marshaler,
		Logger:    log,
	})
	return &buses{events, commands, eventProcessor, commandProcessor}, errors.Join(err1, err2, err3, err4)
}

// addHandlers registers the clinic's handlers. A handler's name is also its consumer group, so it
// must not change while messages wait for it.
func (b *buses) addHandlers(c *clinic) error {
	return errors.Join(
		b.eventProcessor.AddHandlers(
			cqrs.NewEventHandler("confirm", c.confirm),
			cqrs.NewEventHandler("plan", c.plan),
			cqrs.NewEventHandler("ask-for-feedback", c.askForFeedback),
			cqrs.NewEventHandler("bill", c.bill),
		),
		b.commandProcessor.AddHandlers(
			cqrs.NewCommandHandler("remind-patient", c.remindPatient),
			cqrs.NewCommandHandler("cancel-appointment", c.cancelAppointment),
		),
	)
}
