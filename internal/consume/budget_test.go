package consume

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// user is a subscription that shares a budget. It takes a message in hand for each place.
type user struct {
	*Share
	inHand int
	wanted int // messages that it has besides
	told   int
}

func newUser(b *Budget) *user {
	u := &user{}
	u.Share = b.Join(func() { u.told++ })
	return u
}

// want tells the budget that the user has so many messages besides those in hand.
func (u *user) want(n int) (has int) {
	u.wanted = n
	has, _ = u.Hold(u.inHand, u.inHand+n)
	return has
}

// take takes a message in hand, if there is a place.
func (u *user) take() bool {
	if has, _ := u.Hold(u.inHand+1, u.inHand+u.wanted); u.wanted == 0 || has <= u.inHand {
		u.want(u.wanted)
		return false
	}
	u.inHand++
	return u.want(u.wanted-1) >= u.inHand
}

func (u *user) settle() {
	u.inHand--
	u.want(u.wanted)
}

func TestASubscriptionGetsAllPlacesIfNoOtherWantsOne(t *testing.T) {
	t.Parallel()
	b := NewBudget(5)
	a, other := newUser(b), newUser(b)
	require.Equal(t, 5, a.want(9))
	require.Equal(t, 0, other.want(1), "they wait")
	require.Equal(t, 2, a.want(2), "it gives back")
	require.Equal(t, 1, other.told)
	require.Equal(t, 1, other.want(1))
	require.Equal(t, 2, a.want(2))
}

// Else a Subscribe that renews its subscriptions would grow for ever.
func TestAnEndedSubscriptionLeavesNothingInTheBudget(t *testing.T) {
	t.Parallel()
	b := NewBudget(2)
	stays, goes := newUser(b), newUser(b)
	goes.want(2)
	require.True(t, goes.take())
	goes.Leave()
	require.Equal(t, []*Share{stays.Share}, b.shares)
	require.Equal(t, 2, stays.want(2))
}

func TestOnePlaceGoesRound(t *testing.T) {
	t.Parallel()
	b := NewBudget(1)
	users := []*user{newUser(b), newUser(b), newUser(b)}
	for _, u := range users {
		u.want(10)
	}
	for i := range 20 {
		for j, u := range users {
			require.Equal(t, j == i%3, u.take(), "turn %d: %d", i, j)
		}
		users[i%3].settle()
	}
}

func TestAFairShareIsKept(t *testing.T) {
	t.Parallel()
	b := NewBudget(10)
	a, other := newUser(b), newUser(b)
	a.want(100)
	for range 10 {
		require.True(t, a.take())
	}
	other.want(100)
	for range 20 {
		a.settle()
		a.take()
		for other.take() {
		}
	}
	require.Equal(t, 5, a.inHand)
	require.Equal(t, 5, other.inHand)
	_, fair := a.Hold(a.inHand, 100)
	require.Equal(t, 5.0, fair)
}

// A subscription whose server does not answer has places that it does not use.
func TestUnusedPlacesAreTakenAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(3)
		hangs, other := newUser(b), newUser(b)
		hangs.want(3)
		require.True(t, hangs.take())
		require.Equal(t, 0, other.want(3))
		time.Sleep(3 * longestStay)
		synctest.Wait()
		require.Equal(t, 2, other.want(3), "all but that of the message in hand")
		require.Equal(t, 1, hangs.want(0))
		hangs.settle()
		require.Equal(t, 3, other.want(3))
		other.want(0)
		require.Zero(t, b.active)
	})
}

func TestWhoeverWaitsKeepsThePlacesThatItUses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(2)
		busy, other := newUser(b), newUser(b)
		busy.want(2)
		other.want(1)
		for range 10 {
			time.Sleep(longestStay / 2)
			require.Equal(t, 2, busy.want(2), "it asks now and then")
		}
	})
}

// TestBudgetKeepsItsRulesInAnyHistory: never are more messages in hand than there are places, no
// place is lost, and each that waits gets a place while others settle.
func TestBudgetKeepsItsRulesInAnyHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 12).Draw(t, "places")
		b := NewBudget(total)
		b.timer = stoppedTimer(func() {}) // revoke is a step, and does not come by itself between two others
		users := make([]*user, rapid.IntRange(1, 6).Draw(t, "users"))
		for i := range users {
			users[i] = newUser(b)
		}
		check := func() {
			inHand, has, active := 0, 0, 0
			for _, u := range users {
				inHand += u.inHand
				has += u.has
				require.GreaterOrEqual(t, u.has, u.inHand)
				require.GreaterOrEqual(t, u.wants, u.has)
				if u.wants > 0 {
					active++
				}
			}
			require.LessOrEqual(t, inHand, total)
			require.Equal(t, total, has+b.free)
			require.Equal(t, active, b.active)
			if b.free > 0 {
				require.Empty(t, b.waiting)
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			u := rapid.SampledFrom(users).Draw(t, "user")
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				u.want(rapid.IntRange(0, 15).Draw(t, "wanted"))
			case 1:
				u.take()
			case 2:
				if u.inHand > 0 {
					u.settle()
				}
			case 3:
				b.revoke()
			}
			check()
		}
		for _, u := range users { // all have much to do, and settle what they have, one after the other
			u.want(1000)
		}
		got := make([]bool, len(users))
		for range 3 * (total + len(users)) {
			for i, u := range users {
				for u.take() {
					got[i] = true
				}
				if u.inHand > 0 {
					u.settle()
				}
				check()
			}
		}
		require.NotContains(t, got, false, "a user starves")
		for _, u := range users {
			u.inHand = 0
			u.want(0)
		}
		require.Equal(t, total, b.free)
		b.timer.Stop()
	})
}
