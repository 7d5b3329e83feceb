package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
)

// failing is a Publisher whose third call fails after it has published, as if the answer was lost.
type failing struct {
	message.Publisher
	calls int
}

func (f *failing) Publish(topic string, messages ...*message.Message) error {
	err := f.Publisher.Publish(topic, messages...)
	if f.calls++; f.calls == 3 {
		return errors.New("no answer")
	}
	return err
}

func TestRowsOfTheDelayedPublisherMoveWithTheirDueTimes(t *testing.T) {
	worlds(t, func(t *testing.T, w *world, publisher message.Publisher) {
		old, err := wsql.NewDelayedPostgreSQLPublisher(wsql.BeginnerFromStdSQL(w.db), wsql.DelayedPostgreSQLPublisherConfig{})
		require.NoError(t, err)
		due := map[string]time.Time{}
		for i := range 5 {
			at := time.Now().Add(time.Duration(i-1) * time.Hour).UTC().Truncate(time.Second) // the first is overdue
			msg := message.NewMessage(fmt.Sprint("uuid ", i), []byte(`{"order": 1}`))
			msg.Metadata.Set("kind", "gift")
			delay.Message(msg, delay.Until(at))
			require.NoError(t, old.Publish(reminders, msg))
			due[msg.UUID] = at
		}
		for _, uuid := range []string{"equal", "equal", ""} {
			msg := message.NewMessage(uuid, []byte(`{"order": 1}`))
			msg.Metadata.Set("kind", "gift")
			delay.Message(msg, delay.For(5*time.Hour))
			require.NoError(t, old.Publish(reminders, msg))
		}
		same := func(*message.Message) string { return reminders }
		fails := &failing{Publisher: publisher}
		n, err := moveWaiting(context.Background(), w.db, reminders, fails, same, nil)
		require.EqualError(t, err, "no answer")
		require.Equal(t, 2, n)
		_, err = moveWaiting(context.Background(), w.db, reminders, fails, same, nil)
		require.NoError(t, err)
		require.Zero(t, w.count(`"watermill_reminders"`))

		page, err := newAdmin(t, w).List(context.Background(), reminders, admin.Query{State: admin.Waiting, Limit: 100})
		require.NoError(t, err)
		require.Len(t, page.Messages, 8, "each once")
		for _, m := range page.Messages {
			late := m.Places[0].At.Sub(due[m.UUID])
			if _, known := due[m.UUID]; known && m.UUID != "uuid 0" && m.UUID != "uuid 1" {
				require.True(t, late >= 0 && late <= 1500*time.Millisecond, "%s is due %v late", m.UUID, late)
			}
			var payload map[string]int
			require.NoError(t, json.Unmarshal(m.Payload, &payload))
			require.Equal(t, map[string]int{"order": 1}, payload)
			require.Equal(t, "gift", m.Metadata["kind"])
			require.NotContains(t, m.Metadata, rowKey)
		}
	})
}

func TestRowsOfTheDelayedRequeuerMoveToTheirTopics(t *testing.T) {
	worlds(t, func(t *testing.T, w *world, publisher message.Publisher) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		requeuer, err := wsql.NewPostgreSQLDelayedRequeuer(wsql.DelayedRequeuerConfig{
			DB: wsql.BeginnerFromStdSQL(w.db), Publisher: publisher,
			DelayOnError: &middleware.DelayOnError{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 1},
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		require.NoError(t, err)
		subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: w.redis, KeyPrefix: w.prefix}, nil)
		require.NoError(t, err)
		router.AddMiddleware(requeuer.Middleware()...)
		router.AddConsumerHandler("fails", "orders", subscriber, func(*message.Message) error { return errors.New("fails") })
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		msg := message.NewMessage("uuid", []byte(`{}`))
		require.NoError(t, publisher.Publish("orders", msg))
		require.Eventually(t, func() bool { return w.count(`"watermill_requeue"`) == 1 }, 20*time.Second, 10*time.Millisecond)
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)

		n, err := moveWaiting(ctx, w.db, "requeue", publisher, func(msg *message.Message) string { return msg.Metadata.Get(middleware.PoisonedTopicKey) }, nil)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		page, err := newAdmin(t, w).List(ctx, "orders", admin.Query{State: admin.Waiting, Limit: 100})
		require.NoError(t, err)
		require.Len(t, page.Messages, 1)
		require.Equal(t, "uuid", page.Messages[0].UUID)
		require.WithinDuration(t, time.Now().Add(time.Hour), page.Messages[0].Places[0].At, time.Minute)
	})
}
