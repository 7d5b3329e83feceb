package periodic

import (
	"os"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerAddr); addr != "" {
		work(addr)
		return
	}
	redistest.Main(m)
}
