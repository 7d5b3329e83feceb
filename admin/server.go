package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// maxClockDifference is the largest difference between this machine's and the server's clock that
// is not reported.
const maxClockDifference = time.Second

// serverFindings returns warnings about the server's settings and clock.
func serverFindings(s servers.Server) []Finding {
	var found []Finding
	warn := func(kind, format string, args ...any) {
		found = append(found, Finding{Severity: Warning, Kind: kind, Detail: fmt.Sprintf(format, args...)})
	}
	switch policy, known := s.Info["maxmemory_policy"]; {
	case s.Info["maxmemory"] == "0": // there is no limit, and so no eviction
	case !known:
		warn("eviction", "the server does not say its maxmemory-policy; it should be noeviction")
	case policy != "noeviction" && strings.HasPrefix(policy, "volatile-"):
		warn("eviction", "maxmemory-policy is %s: keys that expire may be evicted, so a repeated call may not be recognised; it should be noeviction", policy)
	case policy != "noeviction":
		warn("eviction", "maxmemory-policy is %s: any message may be evicted; it should be noeviction", policy)
	}
	aof, known := s.Info["aof_enabled"]
	switch {
	case !known:
		warn("persistence", "the server does not say whether it writes an append-only file")
	case aof != "1":
		warn("persistence", "there is no append-only file: a restart loses all writes since the last snapshot, or everything without one")
	case s.Info["aof_last_write_status"] != "" && s.Info["aof_last_write_status"] != "ok":
		warn(string(WriteFailed), "the last write of the append-only file failed: %s", s.Info["aof_last_write_status"])
	}
	if status := s.Info["rdb_last_bgsave_status"]; status != "" && status != "ok" {
		warn(string(WriteFailed), "the last snapshot failed: %s", status)
	}
	if off := s.Clock.Abs(); off > maxClockDifference {
		where := "ahead of"
		if s.Clock < 0 {
			where = "behind"
		}
		warn("clock", "the server's clock is %v %s this machine's; the server's clock decides when messages are due", off.Round(time.Millisecond), where)
	}
	return found
}
