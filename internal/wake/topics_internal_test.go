package wake

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
)

func TestOnlyNewsOfTheRegistryAreLogged(t *testing.T) {
	t.Parallel()
	away := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	alsoAway := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	notEntered := fmt.Errorf("%w: %q: %w", ErrNotEntered, "orders", away)
	const (
		cannotListen = "Cannot listen for new topics, looking for them twice a minute"
		cannotRead   = "Cannot read the registry of topics, trying again"
		cannotMend   = "Cannot mend the registry of topics, trying again"
		readAgain    = "The registry of topics is read again"
	)
	var news RegistryNews
	for i, step := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{fmt.Errorf("%w: %w", ErrNotHeard, refusal.ErrForbidden), cannotListen},
		{nil, ""}, // that it is read is no answer to that
		{away, cannotRead},
		{alsoAway, ""}, // one outage has many errors
		{refusal.ErrForbidden, cannotRead},
		{refusal.ErrForbidden, ""},
		{nil, readAgain},
		{nil, ""},
		{notEntered, cannotMend},
		{alsoAway, cannotRead}, // the registry's node is another
		{notEntered, cannotMend},
		{nil, readAgain},
	} {
		require.Equal(t, step.want, news.Of(step.err), "step %d", i)
	}
}
