package wake_test

import (
	"context"
	"testing"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { redistest.Main(m) }
