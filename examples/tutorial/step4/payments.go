package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// pay publishes that the customer wants to pay.
func (s *shop) pay(id string) error {
	return s.publisher.Publish("payments", message.NewMessage(watermill.NewUUID(), []byte(id)))
}

// onPayment takes the money, and then marks the order as paid.
func (s *shop) onPayment(msg *message.Message) error {
	id := string(msg.Payload)
	if err := askBank(id); err != nil {
		delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
		fmt.Printf("%s: try %d: %v\n", id, delivery.Number, err)
		return err
	}
	status, err := s.end(msg.Context(), id, "paid")
	if err == nil {
		fmt.Println("the bank pays:", id, "is", status) // if it is not paid, give the money back
	}
	return err
}

// askBank stands for a call to the bank. A real one passes the order's ID as the idempotency key,
// because a message can come twice.
func askBank(id string) error {
	switch os.Getenv("BANK") {
	case "down":
		return errors.New("the bank does not answer")
	case "slow":
		fmt.Println(id + ": asking the bank")
		time.Sleep(2 * time.Second)
	}
	return nil
}
