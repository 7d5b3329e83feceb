package periodic

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// AddHandler adds a handler named "periodic" to the router. It is an alternative to Run: the
// schedules then run as long as the router. The handler gets no messages.
//
// Occurrences are messages like any others. A handler for them subscribes to their topic with a
// redisdelay.Subscriber.
func (p *Periodic) AddHandler(router *message.Router) {
	router.AddConsumerHandler("periodic", "schedules", &runner{p: p}, func(*message.Message) error { return nil })
}

// runner is a subscriber that runs a Periodic instead of subscribing.
type runner struct {
	p     *Periodic
	end   context.CancelFunc // nil before Subscribe
	ended chan struct{}
}

// String is the name of the subscriber in the router's logs and metrics.
func (r *runner) String() string { return "periodic.Periodic" }

// Subscribe runs the schedules until ctx ends, or Close is called.
func (r *runner) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	messages, ended := make(chan *message.Message), make(chan struct{})
	ctx, r.end = context.WithCancel(ctx)
	r.ended = ended
	go func() {
		defer close(ended)
		defer close(messages)
		if err := r.p.Run(ctx); err != nil {
			r.p.logger.Error("The schedules have stopped", err, nil)
		}
	}()
	return messages, nil
}

// Close ends the run, and waits for its end.
func (r *runner) Close() error {
	if r.end != nil {
		r.end()
		<-r.ended
	}
	return nil
}
