package dashboard

import "time"

// Hasten has the page wait for browsers for so long only.
func (d *Dashboard) Hasten(read, write time.Duration) { d.limits.read, d.limits.write = read, write }

// Stop has the page examine so many dead letters for their reasons, and show so many problems.
func (d *Dashboard) Stop(dead, problems int) { d.limits.dead, d.limits.problems = dead, problems }

// KeepFailedLogins has a failed login keep its place for so long.
func (d *Dashboard) KeepFailedLogins(length time.Duration) { d.limits.login = length }

// Routes returns the method, the path and the needed role of each address of the page.
func (d *Dashboard) Routes() (all [][3]string) {
	for _, r := range d.routes {
		all = append(all, [3]string{r.method, r.path, r.needs.String()})
	}
	return all
}

// Hides returns whether the values of a key are hidden by some names.
func Hides(key string, names ...string) bool { return hiddenNamesOf(names).hide(key) }

// Shows returns what of a payload is shown: all of its forms, and its preview.
func Shows(payload string, names ...string) string {
	h := hiddenNamesOf(names)
	c := h.contentOf([]byte(payload))
	return c.JSON + "\n" + c.Text + "\n" + c.Hex + "\n" + h.preview([]byte(payload), previewed)
}

// Forms returns a payload as JSON and as text, and whether they are cut.
func Forms(payload string, names ...string) (asJSON, text string, cut bool) {
	c := hiddenNamesOf(names).contentOf([]byte(payload))
	return c.JSON, c.Text, c.Cut
}

// Searched returns what of a payload a search sees.
func Searched(payload string, names ...string) string {
	return string(hiddenNamesOf(names).searchable([]byte(payload)))
}

// ServeAs has requests be of another user while do runs.
func (d *Dashboard) ServeAs(user User, do func()) {
	before := d.config.Anonymous
	defer func() { d.config.Anonymous = before }()
	d.config.Anonymous = user
	do()
}
