package redisdelaytest

import "time"

// SetPatience sets how long programs may take to settle.
func (s *Server) SetPatience(d time.Duration) { s.patience = d }
