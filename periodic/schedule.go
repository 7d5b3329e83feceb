package periodic

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/guard"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// schedule is a Schedule that was added.
type schedule struct {
	Schedule
	planner
	definition string
	periodic   *Periodic
	logger     watermill.LoggerAdapter

	// Only the topic's loop uses these.
	version  int64     // that this program follows; 0: it has not looked yet
	left     int64     // version of another program's record, which this program leaves alone
	asked    time.Time // when this program last asked others to answer, by its own clock
	rest     time.Time // until when the record asks for nothing if nobody amends it; zero: look
	reported bool      // that Message takes long was logged

	mu       sync.Mutex // guards the fields below
	since    time.Time  // since when a call of Message or Publish is under way; zero: none is
	failures int        // in a row
	retry    time.Time  // when the next try is, after a failure
}

// newSchedule checks a schedule.
func (p *Periodic) newSchedule(s Schedule) (*schedule, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.setDefaults()
	found, err := s.instants()
	if err != nil {
		return nil, err
	}
	text, err := s.define()
	if err != nil {
		return nil, err
	}
	return &schedule{
		Schedule:   s,
		definition: text,
		periodic:   p,
		logger:     p.logger.With(watermill.LogFields{"schedule": s.Name, "topic": s.Topic}),
		planner: planner{series: found, jitter: s.offset(), misfire: s.Misfire,
			within: s.MisfireWithin, ahead: p.config.Ahead},
	}, nil
}

// rests tells whether the record asks for nothing, unless somebody has amended it. Only the topic's
// loop calls it, as the methods that use rest.
func (s *schedule) rests(now time.Time) bool { return s.version != 0 && now.Before(s.rest) }

func (s *schedule) busySince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since
}

// free tells whether a new plan may be carried out: no other one is under way, and no pause after a
// failure lasts.
func (s *schedule) free(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since.IsZero() && !now.Before(s.retry)
}

// begin notes that a plan is carried out.
func (s *schedule) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
}

// backoff is how long a schedule waits after a failure.
var backoff = redisdelay.ExponentialBackoff(time.Second, time.Minute)

// end notes what became of a plan, and logs a failure and its end.
func (s *schedule) end(err error) {
	s.mu.Lock()
	s.since = time.Time{}
	failures := s.failures
	wait := time.Duration(0)
	if err == nil {
		s.failures, s.retry = 0, time.Time{}
	} else {
		s.failures++
		wait = backoff(s.failures)
		s.retry = time.Now().Add(wait)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		s.logger.Error("Cannot publish the next occurrences of a schedule, trying again", err,
			watermill.LogFields{"failures": failures + 1, "wait": wait})
	case failures > 0:
		s.logger.Info("Publishing the occurrences of the schedule again", watermill.LogFields{"failures": failures})
	}
}

// chunk is how many occurrences go into one call of Publish.
const chunk = 100

// carryOut publishes the occurrences of a plan, as far as it comes.
func (s *schedule) carryOut(plan []planned) error {
	var messages []*message.Message
	var guards []queue.Guard
	publish := func() error {
		err := s.send(messages, guards)
		messages, guards = nil, nil
		return err
	}
	for _, o := range plan {
		msg, err := s.make(o)
		if err != nil {
			return errors.Join(fmt.Errorf("occurrence %s: %w", o.at.UTC().Format(time.RFC3339), err), publish())
		}
		messages, guards = append(messages, msg), append(guards, o.guard)
		if len(messages) == chunk {
			if err := publish(); err != nil {
				return err
			}
		}
	}
	return publish()
}

// send publishes messages. If they are too many or too large for one call, or for the room in the
// topic, it publishes the first half before the others, so that what is due next comes first.
func (s *schedule) send(messages []*message.Message, guards []queue.Guard) error {
	if len(messages) == 0 {
		return nil
	}
	err := s.periodic.publisher.PublishGuarded(s.Topic, messages, guards)
	half := len(messages) / 2
	if half == 0 || !errors.Is(err, redisdelay.ErrPublishTooLarge) && !errors.Is(err, redisdelay.ErrTopicFull) {
		return err
	}
	if err := s.send(messages[:half], guards[:half]); err != nil {
		return err
	}
	return s.send(messages[half:], guards[half:])
}

// make returns the message of an occurrence.
func (s *schedule) make(o planned) (*message.Message, error) {
	occurrence := Occurrence{Schedule: s.Name, Topic: s.Topic, At: o.at.In(s.Location)}
	if !o.previous.IsZero() {
		occurrence.Previous = o.previous.In(s.Location)
	}
	var msg *message.Message
	var err error
	if exited := guard.Apart("Message", func() { msg, err = s.Message(occurrence) }); exited != nil {
		return nil, exited
	}
	if err = guard.Sound(err); err != nil {
		return nil, fmt.Errorf("make message: %w", err)
	}
	if msg == nil {
		return nil, errors.New("make message: neither a message nor an error")
	}
	return occurrence.stamp(msg, o.due), nil
}
