package dashboard

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// An operator reads a chart with the pointer, scrolls a table on a phone, and makes a typo.
func TestWhatAnOperatorSeesOnAPage(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(3, 1)
		s.publish(topic, 30*time.Minute, `{"order":1}`)
		b := open(t, s.address+"/topic?t="+topic)
		b.sees("Becomes due in the next hour", "Behind", "99 % within")
		b.do(script(`(() => {
			const over = document.querySelector("#chart-upcoming .u-over"), at = over.getBoundingClientRect();
			over.dispatchEvent(new MouseEvent("mousemove", {clientX: at.left + at.width / 2, clientY: at.top + 9, bubbles: true}));
		})()`))
		require.Eventually(t, func() bool {
			return got(b, chromedp.Evaluate[bool](`/: Messages \d+, Retries \d+/.test(document.querySelector("#chart-upcoming .readout").textContent)`))
		}, patience, 20*time.Millisecond, "no values under the pointer")
		b.do(phone)
		require.True(t, got(b, chromedp.Evaluate[bool](`[...document.querySelectorAll(".scroll")].some((e) => e.scrollWidth > e.clientWidth)`)), "nothing scrolls")
		require.True(t, got(b, chromedp.Evaluate[bool](`[...document.querySelectorAll("th.wide")].every((e) => e.offsetWidth > 0)`)), "a column is hidden")
		b.do(wide, chromedp.Navigate(s.address+"/confirm?do=remove-topic&t="+topic))
		b.fill("typed-name", "ordres")
		b.fill("typed-count", "7")
		b.do(script(`document.querySelector("form.confirm button").click()`))
		b.sees("The topic that you typed is another one. Nothing was changed.")
		require.Equal(t, "ordres", got(b, chromedp.Evaluate[string](`document.querySelector("[name=typed-name]").value`)))
		b.close()

		s.recur(topic, recurring)
		b = open(t, s.address+"/schedule?t="+topic+"&s="+recurring)
		b.click("Pause or resume")
		b.fill("why", "stock-taking")
		b.fill("for", "2h")
		b.click("Pause")
		b.sees("by ann, until", "stock-taking")
		b.close()
	})
}
