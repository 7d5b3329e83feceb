package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/example"
)

// In reality these are days or hours.
const (
	ahead  = time.Second            // time from booking to appointment
	notice = 500 * time.Millisecond // time from reminder to appointment
	length = 250 * time.Millisecond // length of an appointment
)

// AppointmentBooked is an event.
type AppointmentBooked struct {
	ID      string    `json:"id"`
	Patient string    `json:"patient"`
	At      time.Time `json:"at"`
}

// AppointmentOver is an event. It is delivered at the end of the appointment, cancelled or not.
type AppointmentOver struct {
	ID string `json:"id"`
}

// RemindPatient is a command.
type RemindPatient struct {
	ID string `json:"id"`
}

// CancelAppointment is a command.
type CancelAppointment struct {
	ID string `json:"id"`
}

type appointment struct {
	patient   string
	at        time.Time
	cancelled bool
}

// clinic handles the events and commands. In reality its calendar is in a database.
type clinic struct {
	*buses
	timeline example.Timeline
	done     func()

	mu       sync.Mutex
	calendar map[string]*appointment
	toDo     map[string]bool // for each appointment, the handlers that have not had it yet
}

func newClinic(b *buses, done func()) *clinic {
	return &clinic{
		buses:    b,
		timeline: example.NewTimeline(),
		done:     done,
		calendar: map[string]*appointment{},
		toDo:     map[string]bool{"cancel 2": true},
	}
}

func (c *clinic) book(id, patient string) *AppointmentBooked {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeline.Printf("%s: booked", patient)
	booked := &AppointmentBooked{ID: id, Patient: patient, At: time.Now().Add(ahead)}
	c.calendar[id] = &appointment{patient: patient, at: booked.At}
	for _, handler := range []string{"confirm", "remind", "feedback", "bill"} {
		c.toDo[handler+" "+id] = true
	}
	return booked
}

// plan sends the delayed command and publishes the delayed event. If the second call fails, the
// event is delivered again and the first is repeated. So the handlers must accept duplicates.
func (c *clinic) plan(ctx context.Context, booked *AppointmentBooked) error {
	reminder := delay.WithContext(ctx, delay.Until(booked.At.Add(-notice)))
	if err := c.commands.Send(reminder, &RemindPatient{ID: booked.ID}); err != nil {
		return err
	}
	over := delay.WithContext(ctx, delay.Until(booked.At.Add(length)))
	return c.events.Publish(over, &AppointmentOver{ID: booked.ID})
}

func (c *clinic) confirm(_ context.Context, booked *AppointmentBooked) error {
	return c.handle("confirm", booked.ID, func(a *appointment) { c.say(a, "confirmed") })
}

func (c *clinic) remindPatient(_ context.Context, cmd *RemindPatient) error {
	return c.handle("remind", cmd.ID, func(a *appointment) {
		if a.cancelled {
			c.say(a, "no reminder, it is cancelled")
			return
		}
		c.say(a, "reminded, %v ahead", time.Until(a.at).Round(time.Millisecond))
	})
}

func (c *clinic) cancelAppointment(_ context.Context, cmd *CancelAppointment) error {
	return c.handle("cancel", cmd.ID, func(a *appointment) {
		a.cancelled = true
		c.say(a, "cancelled")
	})
}

func (c *clinic) askForFeedback(_ context.Context, over *AppointmentOver) error {
	return c.handle("feedback", over.ID, func(a *appointment) {
		if !a.cancelled {
			c.say(a, "asked for feedback")
		}
	})
}

func (c *clinic) bill(_ context.Context, over *AppointmentOver) error {
	return c.handle("bill", over.ID, func(a *appointment) {
		if !a.cancelled {
			c.say(a, "billed")
		}
	})
}

// handle calls do for an appointment once per handler. A duplicate does nothing.
func (c *clinic) handle(handler, id string, do func(*appointment)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.calendar[id]
	if a == nil {
		return fmt.Errorf("there is no appointment %q", id) // delivered again, after Backoff
	}
	if !c.toDo[handler+" "+id] {
		return nil
	}
	do(a)
	if delete(c.toDo, handler+" "+id); len(c.toDo) == 0 {
		c.done()
	}
	return nil
}

func (c *clinic) say(a *appointment, format string, args ...any) {
	text := a.patient + ": " + fmt.Sprintf(format, args...)
	c.timeline.Printf("%s", text)
}

// summary prints the result, and returns an error if not all was done. why is the reason for which
// the router ended.
func (c *clinic) summary(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if why != nil {
		return fmt.Errorf("%d things were not done: %w", len(c.toDo), why)
	}
	fmt.Println("\nAll is done: of 2 appointments, 1 took place.")
	return nil
}
