package emulink

import "math/rand/v2"

// fate is what happens to one packet on a line.
type fate struct {
	lost      bool
	late      bool // held back, so that those behind overtake it
	twice     bool // a copy arrives right behind it
	corrupted bool // its data was changed, and no checksum tells so
	tampered  bool // its data was changed, and TCP's checksum made right again
}

// luck draws the fates of a line's packets. Each impairment has a generator of
// its own: turning one on does not change the draws of another.
type luck struct {
	jitter, loss, burst, reorder, duplicate, corrupt, tamper *rand.PCG

	inBurst bool // the bad state of the Gilbert–Elliott model
}

// newLuck's number tells apart lines with the same seed.
func newLuck(seed, number uint64) luck {
	stream := func(impairment uint64) *rand.PCG { return rand.NewPCG(seed, impairment<<32|number) }
	return luck{
		loss: rand.NewPCG(seed, 2*number), jitter: rand.NewPCG(seed, 2*number+1),
		burst: stream(1), reorder: stream(2), duplicate: stream(3), corrupt: stream(4), tamper: stream(5),
	}
}

// draw decides the fate of a packet and changes its data if that is part of it.
func (l *luck) draw(p Params, data []byte) fate {
	if l.isLost(p) {
		return fate{lost: true}
	}
	return fate{
		late:      chance(l.reorder, p.Reorder),
		twice:     chance(l.duplicate, p.Duplicate),
		corrupted: p.Corrupt > 0 && chance(l.corrupt, p.Corrupt) && flipBit(data, l.corrupt),
		tampered:  p.Tamper > 0 && l.tampers(p.Tamper, data),
	}
}

// isLost moves on the burst by one packet, and reports whether this one is lost.
// Both kinds of loss are always drawn, so that neither shifts the other's luck.
func (l *luck) isLost(p Params) bool {
	byChance := chance(l.loss, p.Loss)
	switch {
	case p.Burst == 0:
		l.inBurst = false
	case l.inBurst:
		l.inBurst = !chance(l.burst, 1/p.burstLength())
	default:
		l.inBurst = chance(l.burst, p.Burst)
	}
	return l.inBurst && chance(l.burst, p.burstLoss()) || byChance
}

func (l *luck) tampers(share float64, data []byte) bool {
	segment, payload, ok := tcpPayload(data)
	if !ok || !chance(l.tamper, share) {
		return false
	}
	changeByte(segment, payload, l.tamper)
	return true
}

// chance reports true with probability p. It draws nothing if p is 0.
func chance(draws *rand.PCG, p float64) bool {
	return p > 0 && float64(draws.Uint64()>>11)/(1<<53) < p
}

// below draws a number from 0 to n-1. n is small, and the bias with it.
func below(draws *rand.PCG, n int) int { return int(draws.Uint64() % uint64(n)) }
