package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

func TestAPageSaysOfAMessageWhatGetSays(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		newTorn(t, s, "a")
		for _, state := range []admin.State{admin.Waiting, admin.InHand, admin.Retrying, admin.Dead} {
			listed := s.list(t, "a", state)
			require.Len(t, listed, 1)
			got, err := s.admin.Get(ctx, topic, admin.ByID(listed[0].ID))
			require.NoError(t, err)
			require.Equal(t, got, listed[0], state)
			place := listed[0].Places[0]
			inHand := state == admin.InHand
			require.Equal(t, []bool{inHand, inHand, inHand}, []bool{place.Subscription == "S", !place.ClaimedDue.IsZero(), !place.InHandSince.IsZero()})
		}
	})
}
