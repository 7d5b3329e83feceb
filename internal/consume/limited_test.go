package consume

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limitedTo drives a subscription of a group that leases so many messages at once, and has many.
func limitedTo(t *testing.T, atOnce, maxInFlight int) *driver {
	t.Helper()
	d := drive(t, Limits{MaxInFlight: maxInFlight})
	d.redis.atOnce = atOnce
	d.redis.publish(2000)
	d.Woken()
	return d
}

func TestNothingIsClaimedInAdvanceWithALimit(t *testing.T) {
	d := limitedTo(t, 1000, 100)
	d.answer(d.says())
	for range 5 {
		d.pass(time.Microsecond)
		d.ack(d.hand(100)...)
		x, c := d.claims()
		require.Equal(t, 100, c.Limit)
		require.Equal(t, 100, c.Slots)
		require.Nil(t, d.PlanBeside(d.now), "the second lane rests")
		d.answer(x)
	}
}

// The others of the group learn by the claim that there is room for them.
func TestASettlementGoesWithAClaimInAGroupWithANumberAtOnce(t *testing.T) {
	d := limitedTo(t, 3, 5)
	d.answer(d.says())
	in := d.hand(3)
	require.Equal(t, Waiting, d.supply)
	d.ack(in[0])
	x, c := d.claims()
	require.Len(t, x.Acks, 1)
	require.False(t, c.Turn, "nobody woke it, so it leaves room to those that wait")
	require.Equal(t, 3, c.Slots)
	d.answer(x)

	d.ack(d.hand(1)...)
	d.Close()
	x, c = d.claims()
	require.Len(t, x.Acks, 1)
	require.Zero(t, c.Limit)
	d.answer(x)
	d.ack(in[1])
	x, c = d.claims()
	require.Len(t, x.Acks, 1, "also when it closes")
	require.Zero(t, c.Limit)
}

func TestASettlementGoesAloneInAnotherGroup(t *testing.T) {
	d := limitedTo(t, 0, 3)
	d.answer(d.says())
	in := d.hand(3)
	d.ack(in[0])
	d.pass(time.Second)
	d.Close()
	d.answer(d.says())
	d.ack(in[1])
	d.pass(time.Second)
	require.Empty(t, d.says().Claims)
}

func TestARepeatOfAClaimIsFollowedByOneThatWakesOthers(t *testing.T) {
	d := limitedTo(t, 3, 5)
	d.answer(d.says())
	in := d.hand(3)
	d.ack(in[0])
	d.fails = unanswered
	x, first := d.claims()
	d.answer(x)
	d.fails = nil
	d.ack(in[1])
	x, c := d.claims()
	require.Equal(t, first.Number, c.Number)
	require.Len(t, x.Acks, 2)
	d.answer(x)
	x, c = d.claims()
	require.Equal(t, first.Number+1, c.Number)
	require.Empty(t, x.Acks)
}

func TestATokenThatAHandlerUsedDoesNotGoBack(t *testing.T) {
	d := limitedTo(t, 3, 5)
	d.answer(d.says())
	in := d.hand(3)
	d.pass(modelLease + time.Millisecond)
	d.talk()
	require.False(t, d.Has(in[0]), "its lease was lost")
	d.Outlived(in[0])
	x := d.says()
	require.Len(t, x.Releases, 1)
	require.True(t, x.limited)
	require.False(t, x.refunds())
}
