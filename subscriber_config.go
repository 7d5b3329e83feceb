package redisdelay

import (
	"cmp"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// SubscriberConfig configures a Subscriber.
type SubscriberConfig struct {
	// Client is the connection to Redis, required. It stays the caller's: Close never closes it. A
	// *redis.Ring is refused, because its shards do not share wake-ups. A *redis.ClusterClient that
	// reads from replicas is refused too, because these may be behind. A struct that embeds a
	// *redis.Client or a *redis.ClusterClient works as that does. Other types are refused.
	Client redis.UniversalClient

	// Unmarshaler turns bytes back into messages. Default BinaryMarshaler{}. If it returns an
	// error, panics or calls runtime.Goexit, the message is dead-lettered at once, with the reason.
	// If it takes longer than a second, other messages go on meanwhile. If it takes longer than
	// LeaseDuration and MaxExtension, the delivery fails as by a handler that does.
	Unmarshaler Unmarshaler

	// KeyPrefix begins all keys in Redis, and is the same as the publishers'. Default
	// DefaultKeyPrefix. Braces are not allowed.
	KeyPrefix string

	// ConsumerGroup is the group that the subscriber belongs to. Every group gets every message
	// that becomes due after the group exists, and in the first seconds of a topic what came before
	// (TakeoverWindow). Within a group, one subscriber gets it. At most MaxTopicLength bytes, and
	// not of the form "window:<digits>". Default DefaultConsumerGroup.
	ConsumerGroup string

	// Broadcast gives every Subscribe a consumer group of its own, so that each gets every message
	// that becomes due while it lasts. The group ends with the subscription. ConsumerGroup must be
	// empty. Default false: subscribers of the same group share the messages.
	Broadcast bool

	// BroadcastExpiry is how long the group of a Broadcast subscription outlasts a process that
	// crashed, or lost its connection to Redis. Two minutes after that, a subscriber or scheduler
	// of the topic removes the group. While none runs, the group stays, and messages pile up.
	// Default 5m, at least 2m.
	BroadcastExpiry time.Duration

	// GroupExpiry is how long the consumer group outlasts its last subscriber. Two minutes after
	// that the group is removed with all that it holds. Subscribers need so long to reconnect after
	// an outage of Redis. The group is never removed while it has a subscriber. Not for Broadcast.
	// Default 0: for ever; else at least 2m.
	//
	// If subscribers of the group have different values, the longest applies. It counts from the
	// last activity of a subscriber with that value, even if others have subscribed since. A
	// subscriber without a value cancels the expiry, until one with a value subscribes again.
	GroupExpiry time.Duration

	// TakeoverWindow is for how long groups that come after the topic's first one still get what
	// that one got since the topic began, in the same order. So groups that start together miss
	// nothing, whichever is first. The first group opens a window that long, and a later one takes
	// over what the window has. Default 10s; negative: this group does neither. It gets every
	// message that becomes due after it exists, as any group does.
	//
	// A window takes no more than about 10,000 messages. If it is full, a later group gets none of
	// them, which is logged with their number. Messages that the window has are in Redis until it
	// ends, even if all groups are done with them. A group that is deleted and made anew within the
	// window gets them again. Each partition of a partitioned topic has a window of its own.
	// Broadcast groups open none and take none over.
	TakeoverWindow time.Duration

	// SingleActive has one Subscribe of the group at a time get messages, while others stand by.
	// With MaxInFlight 1, messages then come one at a time and in order of their due times, over
	// any number of processes, and over crashes. A nack with a delay lets later messages pass, as
	// the default Backoff does. For strict order, let Backoff return 0: then the message is
	// delivered again at once, until it is dead. Default false.
	//
	// When the active one closes, another takes over at once. When its process is killed, another
	// does within three seconds, and gets first what the old one held. When it is frozen, another
	// does within LeaseDuration. Delivery.Epoch tells
	// who came later.
	//
	// It is a setting of the group, from its first subscriber on: others are refused with
	// ErrGroupMode. To change it, use another group, or delete the group (admin.Admin.DeleteGroup).
	// Versions that do not know the setting refuse the topic, with ErrLayout. Not for Broadcast.
	SingleActive bool

	// MaxInFlight is how many messages of one Subscribe the consumer has at once, neither acked nor
	// nacked. Default 1: with one subscriber in the group, messages then come in order.
	MaxInFlight int

	// Limit is how many messages of the group may begin in a second, over all its processes, by
	// the clock of Redis. In any span of time no more begin than Burst and what Limit brings in
	// that span. That holds after crashes too, and when a thousand fall due in one millisecond. A
	// retry counts as any delivery. Later messages wait in Redis, in order. Use Every for a rate
	// below one a second. Default 0: no limit; else from one a day to 100,000.
	//
	// Limit, Burst and AtOnce are settings of the group: the last subscriber's count, until an
	// operator sets others (admin.Admin.SetLimit). Versions that do not know them refuse the topic,
	// with ErrLayout. A partitioned topic shares them among its partitions.
	Limit Limit

	// Burst is how many messages may begin at once after a pause. Default what Limit brings in
	// 100ms, at least 1. With what Limit brings in 20ms, and at least 2, a group with a backlog
	// uses all of Limit. Only with Limit.
	Burst int

	// AtOnce is how many messages the group has in hand at most, over all its processes. A message
	// whose process died is in hand until it comes back. A handler that lost its lease may still
	// run beside. Default 0: no limit.
	AtOnce int

	// HistoryRetention is for how long the group keeps a line about each message that ended: when
	// it was due and delivered, how often, and which process acked it. admin.Admin.History reads
	// the lines, which have neither payload nor metadata. A line takes about 160 bytes, and Redis
	// some microseconds: see docs/performance.md. Default 0: no history; else from 1s to 366 days.
	//
	// Like Limit, it is a setting of the group, and versions that do not know it refuse the topic.
	// An operator may set another one (admin.Admin.SetHistory).
	HistoryRetention time.Duration

	// MaxHistory is of how many messages lines are kept at most, give or take a hundred. The oldest
	// go first. Default 10,000, at most a million; of each partition. Only with HistoryRetention.
	MaxHistory int

	// LeaseDuration is how long a subscriber holds a message before another may get it. The lease
	// is extended while the handler runs. So it says how soon others notice a crash, not how long a
	// handler may take. Default 30s, at least 10ms.
	//
	// It must be well above the longest time that Redis takes to answer, because a lease begins
	// before the answer arrives. A message whose lease may be over on arrival goes back
	// undelivered. If it had to be held alone, that may use up its deliveries.
	//
	// When a process dies, all messages that it held come back together: see WholeLeases. Fresh
	// messages do not wait for them. A message that was in hand at several crashes in a row
	// may have caused them. From the second one on it is held with half of MaxInFlight messages at
	// most, then with a quarter, and so on. Other messages wait for such a message for two
	// LeaseDurations at most. A message that ends every process is dead after MaxDeliveries + 2 +
	// log2(MaxInFlight) expired leases. Messages beside it lose no delivery, as long as handlers
	// end within a LeaseDuration.
	LeaseDuration time.Duration

	// WholeLeases has messages of a process that died wait until their leases end. Default false:
	// they come back within three seconds. The Redis server tells that a process is gone by its
	// connections. So a process that lives, and whose connections to the server are all cut for
	// about two seconds, counts as dead, and its messages are delivered beside it. Set it if that
	// is worse than to wait. It is a setting of the group: the last subscriber's counts.
	WholeLeases bool

	// MaxExtension is how long a lease is extended at most after its first end. A handler that runs
	// longer loses the message: its context ends, and the delivery counts as failed. Default 1h;
	// negative: no limit.
	//
	// It counts from when the message was read from the channel. The message offered on the channel
	// is held without a limit until it is read. So read the channel, or end Subscribe's context.
	MaxExtension time.Duration

	// MaxDeliveries is after how many failed deliveries a message is dead-lettered. Default 25,
	// which takes about two and a half hours with the default Backoff; negative: no limit. A
	// publisher may set it for one message: see MaxDeliveriesKey.
	//
	// A delivery fails by a Nack, with a delay or without, unless Postpone was called before. It
	// also fails by a handler that runs longer than LeaseDuration and MaxExtension together. A
	// lease that runs out is a failure only if the message had to be held alone: see LeaseDuration.
	// So 1 is not at most once.
	MaxDeliveries int

	// Backoff returns how long a nacked message waits, given the number of the delivery that
	// failed, from 1. A delay in the message's metadata (DelayKey, DelayUntilKey, or Watermill's
	// DelayOnError) comes first, then its own backoff (BackoffKey). With zero or less the message
	// does not wait and keeps its place. If it always fails, it then uses up MaxDeliveries at once.
	// A delivery counts however long the message waits: Postpone is for waits that do not count.
	// Backoff must be safe for concurrent use. A panic or runtime.Goexit in it is logged, and the
	// default is used. Default ExponentialBackoff(time.Second, 10*time.Minute).
	Backoff func(delivery int) time.Duration

	// DeadRetention is how long dead-lettered messages are kept. Default 30 days; negative: for
	// ever.
	DeadRetention time.Duration

	// MaxDead is how many dead letters the group keeps. Default 0: no limit; a negative value is
	// an error. If there are more, the scheduler deletes the oldest as soon as it can. Dying
	// messages are never refused, so for a moment there may be more. The scheduler logs how many it
	// deleted, and admin.GroupCounters.DeadPurged counts them. If subscribers of the group have
	// different values, the last one to subscribe decides, as for DeadRetention. A lower limit
	// applies to the dead letters that are there.
	MaxDead int

	// CloseTimeout is how long Close, and the end of a Subscribe's context, wait for handlers under
	// way, and for Redis to answer their settlements. After a third of it the contexts of the
	// handlers end, and a Nack uses up no delivery: see Subscriber.Close. A handler that returns
	// then costs its message nothing.
	//
	// A message that is not settled by the end is logged as an error and delivered again, even if
	// its handler acks it later. Set CloseTimeout shorter if the process is killed earlier.
	//
	// Default 29s, a second less than Watermill's router waits for handlers. So a handler's work
	// counts while the router waits for it. A negative value is an error.
	CloseTimeout time.Duration
}

func (c *SubscriberConfig) setDefaults() {
	if c.Unmarshaler == nil {
		c.Unmarshaler = BinaryMarshaler{}
	}
	c.KeyPrefix = cmp.Or(c.KeyPrefix, DefaultKeyPrefix)
	if !c.Broadcast {
		c.ConsumerGroup = cmp.Or(c.ConsumerGroup, DefaultConsumerGroup)
	}
	c.BroadcastExpiry = cmp.Or(c.BroadcastExpiry, 5*time.Minute)
	c.TakeoverWindow = cmp.Or(c.TakeoverWindow, queue.DefaultWindow)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 1)
	if c.Limit > 0 {
		c.Burst = cmp.Or(c.Burst, queue.DefaultBurst(float64(c.Limit)))
	}
	c.LeaseDuration = cmp.Or(c.LeaseDuration, 30*time.Second)
	c.MaxExtension = cmp.Or(c.MaxExtension, time.Hour)
	c.MaxDeliveries = cmp.Or(c.MaxDeliveries, 25)
	if c.Backoff == nil {
		c.Backoff = defaultBackoff
	}
	c.DeadRetention = cmp.Or(c.DeadRetention, defaultDeadRetention)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 29*time.Second)
	// Longer durations might overflow in a sum.
	c.LeaseDuration = min(c.LeaseDuration, MaxDelay)
	c.MaxExtension = min(c.MaxExtension, MaxDelay)
	c.CloseTimeout = min(c.CloseTimeout, MaxDelay)
	c.GroupExpiry = min(c.GroupExpiry, MaxDelay)
	c.TakeoverWindow = min(c.TakeoverWindow, MaxDelay)
}

// Validate reports every fault of the configuration at once. Errors wrap ErrInvalidConfig.
// NewSubscriber calls it.
func (c SubscriberConfig) Validate() error {
	return errors.Join(
		field.Check("Client", servers.CheckClient(c.Client)),
		field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)),
		field.Check("ConsumerGroup", checkGroup(c.ConsumerGroup, c.Broadcast)),
		field.Check("BroadcastExpiry", atLeast(c.BroadcastExpiry, 2*time.Minute)),
		field.Check("GroupExpiry", checkGroupExpiry(c.GroupExpiry, c.Broadcast)),
		field.Check("SingleActive", checkSingleActive(c.SingleActive, c.Broadcast)),
		field.NotNegative("MaxInFlight", c.MaxInFlight),
		field.Check("Limit", queue.CheckRate(float64(c.Limit))),
		field.Check("Burst", queue.CheckBurst(c.Burst, c.Limit != 0)),
		field.Check("AtOnce", queue.CheckAtOnce(c.AtOnce)),
		field.Check("HistoryRetention", c.history().CheckFor()),
		field.Check("MaxHistory", c.history().CheckMax()),
		field.Check("LeaseDuration", atLeast(c.LeaseDuration, 10*time.Millisecond)),
		field.NotNegative("MaxDead", c.MaxDead),
		field.NotNegative("CloseTimeout", c.CloseTimeout),
	)
}

// history returns for how long and of how many messages lines are kept.
func (c *SubscriberConfig) history() queue.History {
	return queue.History{For: c.HistoryRetention, Max: c.MaxHistory}
}
