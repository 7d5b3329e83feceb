package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/examples/delayed-kafka/kafkaqueue"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// mailer handles and counts the reminders.
type mailer struct {
	done func()

	mu         sync.Mutex
	next       map[string]int   // number of the reminder that a customer gets next
	partitions map[string]int32 // by customer
	ids        map[string]bool  // relay IDs of handled messages
	mailed     int
	faults     []string
}

func newMailer(done func()) *mailer {
	return &mailer{done: done, next: map[string]int{}, partitions: map[string]int32{}, ids: map[string]bool{}}
}

// mail is the router's handler.
func (m *mailer) mail(msg *message.Message) error {
	notBefore, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get("not_before"))
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(msg.Metadata.Get("number"))
	if err != nil {
		return err
	}
	customer := msg.Metadata.Get(kafkaqueue.KeyOf)
	partition, _ := kafka.MessagePartitionFromCtx(msg.Context())
	late := time.Since(notBefore)

	m.mu.Lock()
	defer m.mu.Unlock()
	id := msg.Metadata.Get(relay.IDKey)
	if m.ids[id] {
		return nil // a duplicate
	}
	if id != "" {
		m.ids[id] = true
	}
	fmt.Printf("%s  %6.1f ms late  partition %d  %s\n", time.Now().Format("15:04:05.000"), float64(late.Microseconds())/1000, partition, msg.Payload)
	if late < 0 {
		m.faults = append(m.faults, fmt.Sprintf("early: %s", msg.Payload))
	}
	if number != m.next[customer] {
		m.faults = append(m.faults, fmt.Sprintf("out of order: %s", msg.Payload))
	}
	if number > 0 && partition != m.partitions[customer] {
		m.faults = append(m.faults, fmt.Sprintf("in another partition: %s", msg.Payload))
	}
	m.next[customer], m.partitions[customer] = number+1, partition
	if m.mailed++; m.mailed == len(customers)*len(delays) {
		m.done()
	}
	return nil
}

// summary prints the result, and returns an error if it is wrong. why is the reason for which the
// router ended, nil if all was done.
func (m *mailer) summary(why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Printf("\n%d reminders came, %d of them through Redis; early or out of order: %d.\n", m.mailed, len(m.ids), len(m.faults))
	if len(m.faults) > 0 {
		return fmt.Errorf("reminders are wrong: %q", m.faults)
	}
	if all := len(customers) * len(delays); m.mailed < all {
		return fmt.Errorf("%d reminders did not come: %w", all-m.mailed, why)
	}
	return nil
}
