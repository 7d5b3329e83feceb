package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/readme"
)

func TestConfigurationTableInDocumentsIsTrue(t *testing.T) {
	var config Config
	config.setDefaults()
	require.Equal(t, redisdelay.BinaryMarshaler{}, config.Marshaler)
	readme.RequireTable(t, "../docs/reference.md", "admin.Config", config, map[string]string{
		"Marshaler": "the `Unmarshaler`, if it is one too, else `BinaryMarshaler{}`",
	})
}
