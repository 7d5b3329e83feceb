package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// end makes an order paid or cancelled, and publishes that. It returns the order's status.
func (s *shop) end(ctx context.Context, id, status string) (string, error) {
	now, err := s.set(ctx, id, status)
	if err == nil && now == status {
		err = s.publisher.Publish("ended", message.NewMessage(id+" "+status, []byte(id+" "+status)))
	}
	return now, err
}

// onEnded returns the handler of a group.
func onEnded(group string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		fmt.Printf("%s: %s\n", group, msg.Payload)
		return nil
	}
}
