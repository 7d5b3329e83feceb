package periodic

import (
	"cmp"
	"errors"
	"hash/fnv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/calendar"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
)

var (
	// ErrInvalidConfig means that fields of Config, Schedule or OverlapConfig are invalid. Each has
	// a redisdelay.FieldError. It is redisdelay.ErrInvalidConfig.
	ErrInvalidConfig = redisdelay.ErrInvalidConfig

	// ErrExists means that Add got a schedule whose topic and name another one has. It is
	// redisdelay.ErrExists.
	ErrExists = redisdelay.ErrExists

	// ErrAlreadyRun means that Run was called a second time. It is redisdelay.ErrAlreadyRun.
	ErrAlreadyRun = redisdelay.ErrAlreadyRun
)

// Config configures a Periodic.
type Config struct {
	// Publisher publishes the occurrences. Required. It is a *redisdelay.Publisher, or a decorator
	// of one, such as the traced Publisher of module otel. A decorator has a method Unwrap()
	// message.Publisher, which returns what it decorates, and so on down to the
	// *redisdelay.Publisher. It has to pass on each message to its topic, with its context or with
	// one that is derived from that, and may not change its delay or its delay ID. The calls of
	// Publish are decorated. Reads and changes of the schedules themselves are not: the
	// *redisdelay.Publisher alone has the connection to Redis for them. The Periodic never closes
	// it. It may be used for other messages, too.
	//
	// Watermill's own decorators have no Unwrap, as that of its metrics and
	// message.MessageTransformPublisherDecorator. A struct that embeds one and has the method makes
	// one fit. A partition.Publisher, a relay.Publisher and Watermill's forwarder publish
	// elsewhere, so they do not fit. Nor does a decorator that leaves messages out, as Watermill's
	// Deduplicator.
	Publisher message.Publisher

	// Ahead is how long before their due time occurrences are in Redis. The next occurrence of each
	// schedule always is, however far ahead. So while no program lives, Redis delivers what is due
	// in half this time, and the next occurrence of rarer schedules. At most 1,000 occurrences of a
	// schedule wait. Of one that has more in this time, 500 to 1,000 do. Default 5m, at least 4
	// times Poll.
	Ahead time.Duration

	// Poll is about how often the Periodic looks at its schedules in Redis. Pauses and removals
	// count at once, and a resume and a request to run now wake it. If its Redis user may not
	// subscribe to channels, these count after Poll, which one line in the log says. A definition
	// of another program always does. Default 5s, at least 100ms.
	Poll time.Duration

	// CloseTimeout is how long Run waits for calls of Message and Publish when its context ends.
	// Default 10s.
	CloseTimeout time.Duration
}

func (c *Config) setDefaults() {
	c.Ahead = cmp.Or(c.Ahead, 5*time.Minute)
	c.Poll = cmp.Or(c.Poll, 5*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 10*time.Second)
}

// Validate reports all faults of the configuration at once. Errors wrap ErrInvalidConfig. New calls
// it.
func (c Config) Validate() error {
	var errs []error
	switch {
	case c.Publisher == nil || c.Publisher == (*redisdelay.Publisher)(nil):
		errs = append(errs, field.Invalid("Publisher", "is required"))
	case undecorated(c.Publisher) == nil:
		errs = append(errs, field.Invalid("Publisher", "is a %T, which is no *redisdelay.Publisher, and has no methods Unwrap() message.Publisher that lead to one", c.Publisher))
	}
	ahead, poll := cmp.Or(c.Ahead, 5*time.Minute), cmp.Or(c.Poll, 5*time.Second)
	if poll < 100*time.Millisecond {
		errs = append(errs, field.Invalid("Poll", "is %v; it has to be at least 100ms, or zero for the default", poll))
	}
	if ahead < 4*poll || ahead > 24*time.Hour {
		errs = append(errs, field.Invalid("Ahead", "is %v; it has to be at least 4 times Poll (%v) and at most 24h, or zero for the default", ahead, poll))
	}
	return errors.Join(append(errs, field.NotNegative("CloseTimeout", c.CloseTimeout))...)
}

// undecorated returns the *redisdelay.Publisher that a Publisher is or decorates, or nil.
func undecorated(p message.Publisher) *redisdelay.Publisher {
	for range 100 { // a decorator may unwrap to itself
		switch d := p.(type) {
		case *redisdelay.Publisher:
			return d
		case interface{ Unwrap() message.Publisher }:
			p = d.Unwrap()
		default:
			return nil
		}
	}
	return nil
}

// Schedule says when messages are published, and which.
type Schedule struct {
	// Name names the schedule in its topic, in all programs. Required, at most MaxNameLength bytes.
	Name string

	// Topic is where the occurrences are published. Required.
	Topic string

	// Spec says when. Required. It is one of
	//
	//   - five fields of cron: minute, hour, day of month, month, day of week. A field is *, a
	//     value, a range such as 9-17, a step such as */15, or a list of these. Months and weekdays
	//     have English names too; Sunday is 0 and 7. If day of month and day of week are both set,
	//     one of them has to match;
	//   - six fields, with the second first;
	//   - @hourly, @daily or @midnight, @weekly, @monthly, @yearly or @annually;
	//   - "@every 90m", a duration of at least a second. It counts from Start, or from the Unix
	//     epoch. "@every 36h from 2026-01-01T06:00:00+01:00" counts from that instant.
	Spec string

	// Location is the time zone of the fields. Default UTC. time.Local is refused, because other
	// machines may have another one.
	Location *time.Location

	// Message makes the message of an occurrence. Required. It runs ahead of time, up to
	// Config.Ahead or until the occurrence before is due, and in one of the programs only. So it
	// says what is to be done, and the handler of the message looks up what is true by then. It
	// must be safe for concurrent use. After an error or a panic it is called again, with a backoff
	// from a second to a minute. Later occurrences of the schedule wait for it; other schedules go
	// on. The metadata of the message may have all settings of a message but a delay and a delay
	// ID.
	Message func(Occurrence) (*message.Message, error)

	// Revision is any text that changes when Message changes. It is part of the definition of the
	// schedule: a program that starts with another one replaces the occurrences that wait. Default
	// "", which leaves those that wait as they are when only Message changes. At most
	// MaxNameLength bytes.
	Revision string

	// Misfire says what becomes of occurrences that were missed: their instants passed, and no
	// program had published them. Default MisfireLast.
	Misfire Misfire

	// MisfireWithin is how far back missed occurrences count. Older ones are only counted. Default
	// 24h with MisfireAll, no limit with MisfireLast.
	MisfireWithin time.Duration

	// Jitter delays all occurrences by the same time, which is less than Jitter and follows from
	// Name. It spreads schedules that have the same Spec. Instants stay as in Spec. Default 0.
	Jitter time.Duration

	// Start is the first instant that counts, and End the first that does not count any more. Zero
	// is no limit.
	Start, End time.Time
}

// MaxNameLength is the longest name and the longest revision of a schedule, in bytes.
const MaxNameLength = 256

// Misfire says what becomes of missed occurrences.
type Misfire string

const (
	// MisfireLast publishes the last missed occurrence.
	MisfireLast Misfire = "last"
	// MisfireAll publishes all missed occurrences, in order.
	MisfireAll Misfire = "all"
	// MisfireSkip publishes none.
	MisfireSkip Misfire = "skip"
)

func (s *Schedule) setDefaults() {
	s.Misfire = cmp.Or(s.Misfire, MisfireLast)
	if s.Misfire == MisfireAll {
		s.MisfireWithin = cmp.Or(s.MisfireWithin, 24*time.Hour)
	}
	if s.Location == nil {
		s.Location = time.UTC
	}
}

// Validate reports all faults of the schedule at once. Errors wrap ErrInvalidConfig. Add calls it.
func (s Schedule) Validate() error {
	var errs []error
	fault := func(name, format string, args ...any) { errs = append(errs, field.Invalid(name, format, args...)) }
	if s.Name == "" || len(s.Name) > MaxNameLength {
		fault("Name", "has %d bytes; it has to have 1 to %d", len(s.Name), MaxNameLength)
	}
	switch n := len(s.Topic); {
	case n == 0:
		fault("Topic", "is required")
	case n > redisdelay.MaxTopicLength:
		fault("Topic", "has %d bytes; it has to have at most %d", n, redisdelay.MaxTopicLength)
	}
	if s.Message == nil {
		fault("Message", "is required")
	}
	zoned := s
	if s.Location == time.Local {
		fault("Location", "is time.Local, which differs between machines; use time.LoadLocation")
		zoned.Location = nil
	}
	zoned.setDefaults()
	if _, err := zoned.instants(); err != nil {
		errs = append(errs, err)
	}
	if len(s.Revision) > MaxNameLength {
		fault("Revision", "has %d bytes; it has to have at most %d", len(s.Revision), MaxNameLength)
	}
	switch s.Misfire {
	case "", MisfireLast, MisfireAll, MisfireSkip:
	default:
		fault("Misfire", "is %q; want %q, %q or %q", s.Misfire, MisfireLast, MisfireAll, MisfireSkip)
	}
	errs = append(errs, field.NotNegative("MisfireWithin", s.MisfireWithin))
	if s.Jitter < 0 || s.Jitter > 24*time.Hour {
		fault("Jitter", "is %v; it has to be from 0 to 24h", s.Jitter)
	}
	if !s.End.IsZero() && !s.End.After(s.Start) {
		fault("End", "is %v, which is not after Start (%v)", s.End, s.Start)
	}
	return errors.Join(errs...)
}

// offset returns by how much each occurrence is later than its instant.
func (s *Schedule) offset() time.Duration {
	if s.Jitter < time.Millisecond {
		return 0
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(s.Name)) // a hash takes all
	return time.Duration(hash.Sum64()%uint64(s.Jitter.Milliseconds())) * time.Millisecond
}

// Next returns the first instant of the schedule after t, in its Location, and when its occurrence
// is due: by the schedule's part of Jitter later. Both are zero if there is none. It needs no
// Redis, and does not know of pauses. The error is the redisdelay.FieldError of Spec,
// which wraps ErrInvalidConfig.
func (s Schedule) Next(t time.Time) (instant, due time.Time, err error) {
	s.setDefaults()
	found, err := s.instants()
	if err != nil {
		return instant, due, err
	}
	if instant = found.Next(t); instant.IsZero() {
		return instant, due, nil
	}
	return instant.In(s.Location), instant.In(s.Location).Add(s.offset()), nil
}

// Upcoming returns when the next occurrences after now are due, n at most, in the schedule's
// Location. It needs no Redis, and does not know of pauses. The error is the
// redisdelay.FieldError of Spec.
func (s Schedule) Upcoming(now time.Time, n int) (dues []time.Time, err error) {
	s.setDefaults()
	found, err := s.instants()
	if err != nil {
		return nil, err
	}
	for at := found.Next(now.Add(-s.offset())); !at.IsZero() && len(dues) < n; at = found.Next(at) {
		dues = append(dues, at.In(s.Location).Add(s.offset()))
	}
	return dues, nil
}

// instants returns the series of the schedule, which has its defaults.
func (s *Schedule) instants() (calendar.Series, error) {
	found, err := calendar.Parse(s.Spec, s.Location, s.Start)
	if err != nil {
		return nil, field.Invalid("Spec", "is %q: %v", s.Spec, err)
	}
	return calendar.Within{Series: found, Start: s.Start, End: s.End}, nil
}
