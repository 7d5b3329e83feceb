package rights

// Commands are those that the work takes.
func (w Work) Commands() []string { return w.commands() }
