package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// redisstreamKind is watermill-redisstream: each topic is a Redis Stream.
type redisstreamKind struct {
	settings      *settings
	redis, source *redisSettings
	maxlen        *int
}

func declareRedisstream(s *settings, source *redisSettings) destinationKind {
	return &redisstreamKind{
		settings: s,
		source:   source,
		redis:    declareRedis(s, "redisstream", "for --to redisstream: the Redis that has the streams; without it, that of --redis"),
		maxlen: s.number("redisstream-maxlen", 0, "for --to redisstream: how long a stream may be, approximately; 0: as long as it gets. "+
			"What is cut off is lost, read or not"),
	}
}

func (k *redisstreamKind) open(_ int, logger *slog.Logger) (*destination, error) {
	connection := k.redis
	if !connection.given() {
		if err := k.ineffective(); err != nil {
			return nil, err
		}
		connection = k.source
	}
	options, err := connection.options()
	if err != nil {
		return nil, err
	}
	if *k.maxlen < 0 {
		return nil, refuse("--redisstream-maxlen is %d; it has to be positive, or 0 for no limit", *k.maxlen)
	}
	options.MaxRetries = -1 // the relay tries again
	client := redis.NewUniversalClient(options)
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{
		Client:        client,
		Marshaller:    streamMarshaler{},
		DefaultMaxlen: int64(*k.maxlen),
	}, watermill.NewSlogLogger(logger))
	if err != nil {
		return nil, err
	}
	return &destination{
		Publisher: publisher,
		permanent: func(err error) bool { return errors.Is(err, errUnsendable) }, // a stream takes whatever Redis does
		check:     func(ctx context.Context) error { return client.Ping(ctx).Err() },
	}, nil
}

// ineffective tells of settings of a connection that is not made, as the streams are in the Redis of --redis.
func (k *redisstreamKind) ineffective() error {
	var errs []error
	for _, setting := range k.settings.all {
		name, given := setting.name, setting.given != byDefault
		if setting.secret != nil {
			name, given = setting.secret.name, given || setting.secret.value != ""
		}
		if given && strings.HasPrefix(name, "redisstream-") && name != "redisstream-maxlen" {
			errs = append(errs, refuse("--%s has no effect without --redisstream", name))
		}
	}
	return errors.Join(errs...)
}

// streamMarshaler is watermill-redisstream's own, and says that what it refuses stays refused.
type streamMarshaler struct {
	redisstream.DefaultMarshallerUnmarshaller
}

func (m streamMarshaler) Marshal(topic string, msg *message.Message) (map[string]any, error) {
	values, err := m.DefaultMarshallerUnmarshaller.Marshal(topic, msg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	return values, nil
}
