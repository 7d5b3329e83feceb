package dashboard

import "time"

// Hasten has the page wait for browsers for so long only.
func (d *Dashboard) Hasten(read, write time.Duration) { d.limits = limits{read, write} }

// Routes returns the method, the path and the needed role of each address of the page.
func (d *Dashboard) Routes() (all [][3]string) {
	for _, r := range d.routes {
		all = append(all, [3]string{r.method, r.path, r.needs.String()})
	}
	return all
}
