package servers_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

type (
	single    struct{ *redis.Client }
	cluster   struct{ *redis.ClusterClient }
	ring      struct{ *redis.Ring }
	universal struct{ redis.UniversalClient }
	deeper    struct{ cluster }
)

func TestCheckClient(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	clusterClient := redis.NewClusterClient(&redis.ClusterOptions{})
	defer clusterClient.Close()
	ringClient := redis.NewRing(&redis.RingOptions{})
	defer ringClient.Close()
	var fromReplicas []*redis.ClusterClient
	for _, options := range []*redis.ClusterOptions{{ReadOnly: true}, {RouteByLatency: true}, {RouteRandomly: true}} {
		c := redis.NewClusterClient(options)
		defer c.Close()
		fromReplicas = append(fromReplicas, c)
	}
	for _, usable := range []redis.UniversalClient{client, single{client}, &single{client}, clusterClient, cluster{clusterClient}, &deeper{cluster{clusterClient}}} {
		require.NoError(t, servers.CheckClient(usable), "%T", usable)
	}
	for _, refused := range []struct {
		client redis.UniversalClient
		says   string
	}{
		{nil, "is nil"},
		{(*redis.Client)(nil), "nil *redis.Client"},
		{(*redis.ClusterClient)(nil), "nil *redis.ClusterClient"},
		{(*single)(nil), "nil *servers_test.single"},
		{single{}, "embeds nil"},
		{&deeper{}, "embeds nil"},
		{ringClient, "*redis.Ring"},
		{&ring{ringClient}, "*redis.Ring"},
		{fromReplicas[0], "reads from replicas"},
		{fromReplicas[1], "reads from replicas"},
		{fromReplicas[2], "reads from replicas"},
		{cluster{fromReplicas[0]}, "reads from replicas"},
		{universal{client}, "is a servers_test.universal, whose methods do not tell"},
		{universal{clusterClient}, "pass a *redis.Client, a *redis.ClusterClient, or a struct that embeds one"},
		{universal{}, "whose methods do not tell"},
	} {
		require.ErrorContains(t, servers.CheckClient(refused.client), refused.says)
		require.Panics(t, func() { servers.MustClient(refused.client) })
	}
}

func TestDatabaseOfAClient(t *testing.T) {
	t.Parallel()
	one := redis.NewClient(&redis.Options{DB: 3})
	defer one.Close()
	several := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"server:6379"}})
	defer several.Close()
	require.Equal(t, 3, servers.MustClient(one).Database())
	require.Equal(t, 3, servers.MustClient(struct{ *redis.Client }{one}).Database())
	require.Zero(t, servers.MustClient(several).Database())
}
