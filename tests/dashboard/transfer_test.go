package dashboard

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// Letters that were exported and purged come back from the file.
func TestAnOperatorImportsDeadLetters(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(20, 10)
		answer, err := http.Get(s.address + "/export?g=" + group + "&t=" + topic)
		require.NoError(t, err)
		defer answer.Body.Close()
		lines, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "letters.ndjson")
		require.NoError(t, os.WriteFile(file, lines, 0o600))
		_, err = s.admin.PurgeDead(t.Context(), topic, admin.Bulk{Group: group})
		require.NoError(t, err)

		b := open(t, s.address+"/dead?t="+topic)
		b.sees("There are no dead letters")
		b.click("Import dead letters")
		b.do(chromedp.SetUploadFiles(`main [name="file"]`, []string{file}))
		b.click("Read the file")
		b.sees("Import 20 dead letters", "They were dead in group")
		b.fill("typed-name", topic)
		b.fill("typed-count", "21")
		b.click("Import 20 dead letters")
		b.sees("The count that you typed is another one. Nothing was changed.")
		b.fill("typed-count", "20")
		b.click("Import 20 dead letters")
		b.sees("Done: 20 of 20")
		require.Equal(t, 20, s.group().Ready)
		require.Equal(t, []string{"ann import", "ann import"}, s.acts())
	})
}

func TestATopicMovesToItsNewName(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(3, 10)
		s.publish(topic, time.Hour, "waits")
		b := open(t, s.address+"/topic?t="+topic)
		b.click("Move to another topic")
		b.fill("to", "shop-orders")
		b.click("See what would move")
		b.sees("Choose that the page makes what is missing.")
		b.do(chromedp.Navigate(s.address + "/topic?t=" + topic))
		b.click("Move to another topic")
		b.fill("to", "shop-orders")
		b.do(chromedp.Click(`main [name="create"]`))
		b.click("See what would move")
		b.sees("Move 4 messages", "There is no topic \"shop-orders\" yet. It is made.")
		b.fill("typed-name", topic)
		b.fill("typed-count", "4")
		b.click("Move 4 messages")
		b.sees("Done: 4 of 4")
		stats, err := s.admin.Stats(t.Context(), "shop-orders")
		require.NoError(t, err)
		require.Equal(t, 1, stats.Waiting)
		require.Equal(t, 3, stats.Groups[0].Dead)
		require.Zero(t, s.stats().Messages)
		require.Equal(t, []string{"ann move", "ann move"}, s.acts())
	})
}
