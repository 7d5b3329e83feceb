package relay

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

func TestReadyAfterTheRegistryWasRead(t *testing.T) {
	t.Parallel()
	r := &Relay{logger: watermill.NopLogger{}}
	run := &run{Relay: r, missing: map[string]error{}}
	run.discovery = newDiscovery(run)
	run.begin()
	require.ErrorIs(t, r.Ready(), errNotRead)
	run.registryRead(fmt.Errorf("%w: forbidden", wake.ErrNotHeard))
	require.ErrorIs(t, r.Ready(), errNotRead, "this error does not mean that it was read")
	away := errors.New("away")
	run.registryRead(away)
	require.ErrorIs(t, r.Ready(), away)
	run.registryRead(fmt.Errorf("%w: orders", wake.ErrNotEntered))
	require.NoError(t, r.Ready(), "the registry was read")
	run.registryRead(away)
	require.ErrorIs(t, r.Ready(), away)
	run.registryRead(nil)
	require.NoError(t, r.Ready())
}
