package strangers

import (
	"container/list"
	"net/netip"
)

// crowd holds strangers that share a number of places. It is not safe for concurrent use.
type crowd struct {
	limits  Limits
	total   int
	sources map[netip.Prefix]*source
	// bySize has the sources with n strangers at index n, sorted by how long they have had that many.
	bySize []*list.List
}

// source is an address with its strangers.
type source struct {
	prefix netip.Prefix
	conns  list.List     // of *Place, the oldest first
	in     *list.List    // of bySize; nil: none yet
	place  *list.Element // in that list
}

func newCrowd(limits Limits) crowd {
	c := crowd{limits: limits, sources: map[netip.Prefix]*source{}, bySize: make([]*list.List, limits.PerSource+1)}
	for i := range c.bySize {
		c.bySize[i] = list.New()
	}
	return c
}

// enter gives a new stranger a place. It returns the stranger that had the place, to be closed, or nil.
func (c *crowd) enter(conn *Place) (victim *Place) {
	s := c.sources[conn.source]
	switch {
	case s != nil && s.conns.Len() >= c.limits.PerSource:
		victim = s.oldest()
	case c.total >= c.limits.Total:
		victim = c.largest().oldest()
	}
	if victim != nil {
		c.leave(victim)
	}
	if s = c.sources[conn.source]; s == nil {
		s = &source{prefix: conn.source}
		c.sources[conn.source] = s
	}
	s.conns.PushBack(conn)
	c.total++
	c.sort(s)
	return victim
}

// leave frees a stranger's place, and reports whether it had one.
func (c *crowd) leave(conn *Place) bool {
	s := c.sources[conn.source]
	if s == nil {
		return false
	}
	for e := s.conns.Front(); e != nil; e = e.Next() {
		if e.Value == conn {
			s.conns.Remove(e)
			c.total--
			c.sort(s)
			return true
		}
	}
	return false
}

// sort moves a source in bySize after its number of strangers has changed.
func (c *crowd) sort(s *source) {
	if s.in != nil {
		s.in.Remove(s.place)
	}
	if s.conns.Len() == 0 {
		delete(c.sources, s.prefix)
		return
	}
	s.in = c.bySize[s.conns.Len()]
	s.place = s.in.PushBack(s)
}

// largest returns the source with the most strangers.
func (c *crowd) largest() *source {
	for n := len(c.bySize) - 1; n > 0; n-- {
		if first := c.bySize[n].Front(); first != nil {
			return first.Value.(*source)
		}
	}
	return nil
}

func (s *source) oldest() *Place { return s.conns.Front().Value.(*Place) }
