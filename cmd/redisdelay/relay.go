package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// relaySettings are the settings of the command relay.
type relaySettings struct {
	*connection
	settings *settings
	health   *healthSettings

	from    *list
	all     *bool
	mapping *list

	group         *string
	ordered       *bool
	concurrency   *int
	batch         *int
	batchWait     *time.Duration
	backoff       *backoff
	maxDeliveries *int
	lease         *time.Duration
	deadRetention *time.Duration
	maxDead       *int
	stopTimeout   *time.Duration

	to    *choice
	kinds map[string]destinationKind
}

// declareRelay declares the settings of the command relay, but those of the connection.
func declareRelay(s *settings, c *connection) *relaySettings {
	r := &relaySettings{settings: s, connection: c}
	r.from = s.list("from", "topics to relay, separated by commas or given several times")
	r.all = s.yes("all", false, "relay all topics under the key prefix, new ones too, instead of --from")
	r.mapping = s.list("map", "`topic=destination topic`: names at the destination, separated by commas or given several times")
	r.to = s.choice("to", "", "`redisstream`, `nats`, `amqp`, `kafka`, or `http` for webhooks: the destination; required",
		"redisstream", "nats", "amqp", "kafka", "http")
	r.group = s.text("group", relay.DefaultConsumerGroup, "consumer group, the same for all processes of one relay")
	r.ordered = s.yes("ordered", false, "keep each topic in order; with one process only")
	r.concurrency = s.number("concurrency", 0, "concurrent calls of the destination per topic; 0: 4, or 1 with --ordered")
	r.batch = s.number("batch", 0, "maximum number of messages in one call; 0: 100, or 1 with --ordered")
	r.batchWait = s.duration("batch-wait", 0, "how long a message waits for others to fill its batch")
	r.backoff = &backoff{text: "250ms..1m"}
	s.declare(r.backoff, "backoff", "how long a message waits after the destination failed to take it: growing, or fixed, such as `5s`")
	r.maxDeliveries = s.number("max-deliveries", -1, "deliveries before a message is dead; negative: no limit")
	r.lease = s.duration("lease", 30*time.Second, "how soon another process gets the messages of a frozen one")
	r.deadRetention = s.duration("dead-retention", 30*24*time.Hour, "how long dead letters are kept; negative: forever")
	r.maxDead = s.number("max-dead", 0, "dead letters that are kept; of more, the oldest are deleted; 0: no limit")
	r.stopTimeout = s.duration("stop-timeout", 10*time.Second, "how long the relay may publish the messages that it holds after a SIGTERM")
	r.health = declareHealth(s)

	r.kinds = map[string]destinationKind{
		"redisstream": declareRedisstream(s, r.redis),
		"nats":        declareNATS(s),
		"amqp":        declareAMQP(s),
		"kafka":       declareKafka(s),
		"http":        declareHTTP(s),
	}
	return r
}

func (a *app) relayCommand() *cobra.Command {
	a.relay = &cobra.Command{Use: "relay --from TOPIC --to DESTINATION [flags]", DisableFlagsInUseLine: true,
		Short: "publish due messages to another message queue", Args: cobra.NoArgs,
		Long: `Publishes due messages to another message queue, until SIGTERM or SIGINT. Each setting is a flag, an
environment variable, or a line of the configuration file.`,
		Example: "  redisdelay relay --redis localhost:6379 --from unpaid-orders --to nats --nats nats://localhost:4222"}
	a.settings.flags = a.relay.Flags()
	a.relaying = declareRelay(a.settings, a.connection)
	a.relay.RunE = a.runs(func(ctx context.Context, _ []string) error {
		if err := a.relaying.run(ctx, a.logger); err != nil && !errors.Is(err, errRefused) {
			a.logger.Error("Failed", "error", err)
			return errSaid
		} else if err != nil {
			return err
		}
		return nil
	})
	return a.relay
}

// run relays until ctx ends.
func (r *relaySettings) run(ctx context.Context, logger *slog.Logger) (err error) {
	topics, rename, err := r.topics()
	options, redisErr := r.redis.options()
	to, openErr := r.open(logger)
	batch, batchErr := r.batchFor(to)
	if err := errors.Join(err, redisErr, openErr, batchErr, r.misplaced(), r.health.check()); err != nil {
		return errors.Join(err, closed(to))
	}
	defer func() { err = errors.Join(err, closed(to)) }()
	r.redis.watch(options)
	client := redis.NewUniversalClient(options)
	defer func() { err = errors.Join(err, client.Close()) }()

	due, err := relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{
			Client:        client,
			KeyPrefix:     *r.keyPrefix,
			ConsumerGroup: *r.group,
			Unmarshaler:   r.codec(),
			Backoff:       r.backoff.wait,
			MaxDeliveries: *r.maxDeliveries,
			LeaseDuration: *r.lease,
			DeadRetention: *r.deadRetention,
			MaxDead:       *r.maxDead,
			CloseTimeout:  *r.stopTimeout,
		},
		Topics:           topics,
		Destination:      to,
		DestinationTopic: rename,
		Permanent:        to.permanent,
		Ordered:          *r.ordered,
		Concurrency:      *r.concurrency,
		BatchMessages:    batch,
		BatchWait:        *r.batchWait,
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return refuse("%w", err)
	}
	operator, err := admin.New(admin.Config{Client: client, KeyPrefix: *r.keyPrefix})
	if err != nil {
		return refuse("%w", err)
	}
	metrics, err := exporter(logger, promredisdelay.Config{Admin: operator, Client: client, Topics: topics})
	if err != nil {
		return err
	}
	health, err := r.health.listen(logger, func(ctx context.Context) error {
		return errors.Join(due.Ready(), r.health.ready(ctx, operator, topics), to.check(ctx))
	}, metrics)
	if err != nil {
		return err
	}
	defer health.close()
	defer atEnd(ctx, func() {
		health.stopping()
		logger.Info("Stopping, publishing the messages that are held", "stop_timeout", *r.stopTimeout)
	})()

	for _, setting := range r.settings.all {
		if strings.HasSuffix(setting.name, "-tls-insecure") && setting.flag.Value.String() == "true" {
			logger.Warn("Certificates are not checked: an attacker in between can read and change everything", "setting", "--"+setting.name)
		}
	}
	if to.warning != "" {
		logger.Warn(to.warning)
	}
	logger.Info("Relaying", "version", version(), "from", strings.Join(topics, ","), "all", topics == nil, "to", r.to.value)
	if err := due.Run(ctx); err != nil {
		return err
	}
	logger.Info("Ended") // the Subscriber has logged messages that are left to their leases
	return nil
}

// atEnd calls f when ctx ends, unless stop was called before. If f was called, stop waits for it.
func atEnd(ctx context.Context, f func()) (stop func()) {
	over := make(chan struct{})
	unneeded := context.AfterFunc(ctx, func() {
		defer close(over)
		f()
	})
	return func() {
		if !unneeded() {
			<-over
		}
	}
}

// topics returns the topics to relay, nil for all, and a function that returns their names at the
// destination.
func (r *relaySettings) topics() ([]string, relay.TopicFunc, error) {
	names := map[string]string{}
	for _, pair := range *r.mapping {
		topic, name, ok := strings.Cut(pair, "=")
		switch {
		case !ok || topic == "" || name == "":
			return nil, nil, refuse("--map has %q, which is not topic=destination topic", pair)
		case names[topic] != "":
			return nil, nil, refuse("--map has topic %q twice", topic)
		case !*r.all && !slices.Contains(*r.from, topic):
			return nil, nil, refuse("--map has topic %q, which --from does not have", topic)
		}
		names[topic] = name
	}
	rename := func(topic string, _ *message.Message) string { return cmp.Or(names[topic], topic) }
	switch {
	case *r.all && len(*r.from) > 0:
		return nil, nil, refuse("--from and --all exclude one another")
	case *r.all:
		return nil, rename, nil
	case len(*r.from) == 0:
		return nil, nil, refuse("--from is missing: the topics to relay; or --all")
	}
	return *r.from, rename, nil
}

func (r *relaySettings) open(logger *slog.Logger) (*destination, error) {
	kind := r.kinds[r.to.value]
	if kind == nil {
		return nil, refuse("--to is missing: %s", strings.Join(r.to.of, ", "))
	}
	if *r.stopTimeout <= 0 {
		return nil, refuse("--stop-timeout is %v; it must be positive", *r.stopTimeout)
	}
	return kind.open(max(1, cmp.Or(*r.batch, 100)), logger)
}

// batchFor returns relay.Config.BatchMessages for a destination, which is nil if it is not open.
func (r *relaySettings) batchFor(to *destination) (int, error) {
	if to == nil || !to.single {
		return *r.batch, nil
	}
	if *r.batch > 1 {
		return 0, refuse("--batch is %d, but --to %s sends each message alone; leave it out, or raise --concurrency", *r.batch, r.to.value)
	}
	return 1, nil
}

// misplaced returns an error for each flag of another destination. Environment variables are
// ignored, because they may be set for other commands.
func (r *relaySettings) misplaced() error {
	var errs []error
	for _, setting := range r.settings.all {
		for _, kind := range r.to.of {
			if kind != r.to.value && setting.given == byFlag && (setting.name == kind || strings.HasPrefix(setting.name, kind+"-")) {
				errs = append(errs, refuse("--%s is for --to %s", setting.name, kind))
			}
		}
	}
	return errors.Join(errs...)
}

func closed(to *destination) error {
	if to == nil {
		return nil
	}
	if err := to.Close(); err != nil {
		return fmt.Errorf("close the destination: %w", err)
	}
	return nil
}

// backoff is the value of a setting: fixed ("5s") or growing ("250ms..1m").
type backoff struct {
	text string
	wait func(delivery int) time.Duration // nil means the relay's default
}

func (b *backoff) String() string { return b.text }

// Type is the name of the type.
func (b *backoff) Type() string { return "backoff" }

// Set accepts a fixed or a growing time.
func (b *backoff) Set(text string) error {
	first, last, grows := strings.Cut(text, "..")
	initial, err := time.ParseDuration(first)
	longest := initial
	if err == nil && grows {
		longest, err = time.ParseDuration(last)
	}
	if err != nil || initial <= 0 || longest < initial || longest > redisdelay.MaxDelay {
		return errors.New("it must be a positive duration such as 5s, or a growing pair such as 250ms..1m")
	}
	b.text, b.wait = text, func(int) time.Duration { return initial }
	if grows {
		b.wait = redisdelay.ExponentialBackoff(initial, longest)
	}
	return nil
}
