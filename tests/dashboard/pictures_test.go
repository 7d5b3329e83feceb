package dashboard

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/demo"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// TestPictures takes the pictures of docs/dashboard.md, of the sample traffic of the tool. It does
// so for make dashboard-pictures, which sets PICTURES to their directory.
func TestPictures(t *testing.T) {
	dir := os.Getenv("PICTURES")
	if dir == "" {
		t.Skip("PICTURES is not set: make dashboard-pictures")
	}
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		s := serve(t, server, operator)
		running, stop := context.WithCancel(ctx)
		began, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- demo.Run(running, server.Client, server.Prefix, func() { close(began) }) }()
		<-began
		time.Sleep(75 * time.Second) // the charts need a past, and an unread group its minute
		for _, act := range []admin.Act{{By: "bob", Action: "requeue", Topic: "mails", Group: "sender", Detail: "done: 1,204 dead letters"},
			{By: "ann", Action: "reschedule", Topic: "unpaid-orders", MessageID: "01M89SFZ2A5KR1DH8KX71EMEHM", Detail: "in 2h0m0s"}} {
			require.NoError(t, s.admin.Record(ctx, act))
		}
		dead, err := s.admin.List(ctx, "mails", admin.Query{State: admin.Dead, Group: "sender", Limit: 1})
		require.NoError(t, err)
		pages := map[string]string{"overview": "/", "topic": "/topic?t=mails", "upcoming": "/topic?t=reminders&range=month", "messages": "/messages?t=unpaid-orders",
			"message": "/message?t=mails&id=" + dead.Messages[0].ID, "dead-letters": "/dead?t=mails&g=sender",
			"confirm": "/confirm?do=requeue&t=mails&g=sender", "audit-log": "/audit", "schedules": "/schedules", "schedule": "/schedule?t=reports&s=daily-report",
			"check": s.checked("unpaid-orders")}
		for _, name := range slices.Sorted(maps.Keys(pages)) {
			b := open(t, s.address+pages[name], light)
			time.Sleep(5 * time.Second)
			for look, actions := range map[string][]step{"light": {light, wide}, "dark": {dark, wide}, "phone": {light, phone}} {
				b.do(actions...)
				time.Sleep(700 * time.Millisecond)
				picture := got(b, chromedp.CaptureScreenshot())
				small := fewColours(t, picture)
				require.Less(t, len(small), 100_000, name)
				require.NoError(t, os.WriteFile(filepath.Join(dir, name+"-"+look+".png"), small, 0o644))
			}
			b.close()
		}
		stop()
		require.NoError(t, <-ended)
	})
}

// fewColours returns a picture with its 256 most frequent colours, which is a third as large.
func fewColours(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	counts := map[color.RGBA]int{}
	box := from.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			counts[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return counts[b] - counts[a] })
	palette := make(color.Palette, 0, 256)
	for _, c := range frequent[:min(256, len(frequent))] {
		palette = append(palette, c)
	}
	to := image.NewPaletted(box, palette)
	draw.Draw(to, box, from, box.Min, draw.Src)
	var b bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, to))
	return b.Bytes()
}
