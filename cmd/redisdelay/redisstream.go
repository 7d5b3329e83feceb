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

// redisstreamKind is a destination in Redis Streams, through watermill-redisstream. Each topic is a
// stream.
type redisstreamKind struct {
	settings      *settings
	redis, source *redisSettings
	maxlen        *int
}

func declareRedisstream(s *settings, source *redisSettings) destinationKind {
	return &redisstreamKind{
		settings: s,
		source:   source,
		redis:    declareRedis(s, "redisstream", "for --to redisstream: the Redis with the streams; default that of --redis"),
		maxlen: s.number("redisstream-maxlen", 0, "for --to redisstream: approximate maximum length of a stream; 0: no limit. "+
			"Entries beyond it are lost, read or not"),
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
		return nil, refuse("--redisstream-maxlen is %d; it must be positive, or 0 for no limit", *k.maxlen)
	}
	options.MaxRetries = -1 // the relay retries
	connection.watch(options)
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
		permanent: func(err error) bool { return errors.Is(err, errUnsendable) }, // Redis refuses no message for good
		check:     func(ctx context.Context) error { return client.Ping(ctx).Err() },
	}, nil
}

// ineffective returns an error for each --redisstream-... setting of a connection that is not used,
// because the streams are in the Redis of --redis.
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

// streamMarshaler is the marshaler of watermill-redisstream. Its errors are permanent.
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
