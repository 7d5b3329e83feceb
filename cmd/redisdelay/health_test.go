package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestTopicWithoutASchedulerIsNotReady(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	operator, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	health := reading(t, nil).health
	require.ErrorIs(t, health.ready(t.Context(), operator, []string{topic}), admin.ErrNotFound)

	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client}, nil)
	require.NoError(t, err)
	require.NoError(t, subscriber.SubscribeInitialize(topic))
	require.NoError(t, health.ready(t.Context(), operator, []string{topic}), "there is nothing to schedule yet")
	publishOrders(t, client, topic, 1, time.Hour)
	require.ErrorContains(t, health.ready(t.Context(), operator, []string{topic}), `no scheduler serves topic "orders"`)
	require.NoError(t, health.ready(t.Context(), operator, nil), "with --all, only Redis is asked")
	require.NoError(t, client.Close())
	require.Error(t, health.ready(t.Context(), operator, nil))
}
