package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/texts"
	"github.com/redisdelay/watermill-redisdelay/internal/when"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// publisher returns a Publisher, which the caller closes.
func (a *app) publisher() (*redisdelay.Publisher, error) {
	client, err := a.connected()
	if err != nil {
		return nil, err
	}
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, KeyPrefix: *a.keyPrefix, Marshaler: a.codec()},
		watermill.NewSlogLogger(a.logger))
	if errors.Is(err, redisdelay.ErrInvalidConfig) {
		return nil, refuse("%w", err)
	}
	return publisher, err
}

// publisherTo returns a Publisher for a topic, which the caller closes. That of a partitioned topic
// publishes if the number of partitions is in Redis.
func (a *app) publisherTo(s admin.Stats) (message.Publisher, error) {
	if s.Partitions == nil {
		return a.publisher()
	}
	return partition.NewPublisher(partition.PublisherConfig{Publisher: redisdelay.PublisherConfig{Client: a.client, KeyPrefix: *a.keyPrefix,
		Marshaler: a.codec()}}, watermill.NewSlogLogger(a.logger))
}

// publishing are the flags of the command publish.
type publishing struct {
	metadata              map[string]string
	in, at, uuid, delayID string
	create                bool
}

// published is the object of the command publish.
type published struct {
	Topic   string `json:"topic"`
	UUID    string `json:"uuid"`
	DelayID string `json:"delay_id,omitempty"`
	Bytes   int    `json:"bytes"`
}

func (a *app) publishCommand() *cobra.Command {
	var p publishing
	c := &cobra.Command{Use: "publish TOPIC [FILE]", Short: "publish a message", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: a.completeTopic,
		Long:    "Publishes a message. Its payload is the content of FILE, by default -, standard input.",
		Example: "  echo '{\"order\":123}' | redisdelay publish orders --in 15m --metadata kind=gift",
		RunE:    a.runs(func(ctx context.Context, args []string) error { return a.publish(ctx, args[0], args[1:], p) })}
	c.Flags().StringToStringVar(&p.metadata, "metadata", nil, "`key=value` of its metadata; may be repeated")
	c.Flags().StringVar(&p.in, "in", "", "due after this `duration`")
	c.Flags().StringVar(&p.at, "at", "", "due at this `time`, such as \"tomorrow 9:00\", 2h (from now) or 2026-11-27T09:00:00Z")
	c.Flags().StringVar(&p.uuid, "uuid", "", "its UUID; default a new one")
	c.Flags().StringVar(&p.delayID, "delay-id", "", "its delay ID; it replaces a waiting message that has it")
	c.Flags().BoolVar(&p.create, "create", false, "make the topic if there is none")
	a.jsonFlag(c.Flags())
	return c
}

func (a *app) publish(ctx context.Context, topic string, file []string, p publishing) error {
	if p.uuid == "" {
		p.uuid = watermill.NewUUID()
	}
	msg := message.NewMessage(p.uuid, nil)
	for key, value := range p.metadata {
		msg.Metadata.Set(key, value)
	}
	switch {
	case p.in != "" && p.at != "":
		return refuse("set either --in or --at")
	case p.in != "":
		d, err := parseDuration("--in", p.in)
		if err != nil {
			return err
		}
		redisdelay.DelayFor(msg, d)
	case p.at != "":
		at, err := instant(time.Now(), "--at", p.at, when.Future)
		if err != nil {
			return err
		}
		redisdelay.DelayUntil(msg, at)
	}
	if p.delayID != "" {
		redisdelay.SetDelayID(msg, p.delayID, redisdelay.DelayIDReplace)
	}
	if err := redisdelay.CheckMetadata(msg); err != nil {
		return refuse("%w", err)
	}
	operator, err := a.admin()
	if err != nil {
		return err
	}
	stats, err := a.mayCreate(ctx, topic, p.create)
	if err != nil {
		return err
	}
	payload, err := a.input(file)
	if err != nil {
		return err
	}
	msg.Payload = payload
	publisher, err := a.publisherTo(stats)
	if err != nil {
		return err
	}
	defer publisher.Close()
	err = publisher.Publish(topic, msg)
	a.record(ctx, operator, admin.Act{Action: "publish", Topic: topic, Detail: fmt.Sprintf("%s, UUID %s", texts.Many(len(payload), "byte"), p.uuid)}, err)
	if err != nil {
		return err
	}
	said := published{topic, p.uuid, p.delayID, len(payload)}
	a.out.say(said, "Published %s to topic %q, UUID %s.", texts.Many(len(payload), "byte"), topic, p.uuid)
	return nil
}

// mayCreate returns an error if there is no such topic and the command is not to make one, so that
// a typo makes none.
func (a *app) mayCreate(ctx context.Context, topic string, create bool) (admin.Stats, error) {
	_, stats, err := a.stats(ctx, topic)
	switch {
	case !errors.Is(err, admin.ErrNotFound):
		return stats, err
	case create:
		return stats, nil
	}
	return stats, fmt.Errorf("%w; --create makes it", err)
}

func parseDuration(flag, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, refuse("%s is %q; it must be a duration such as 2h", flag, text)
	}
	return d, nil
}
