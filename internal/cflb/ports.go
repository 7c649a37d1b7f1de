package cflb

// Ports returns the source and destination port of controlled fields of 32 bits.
func Ports(controlled Number) (source, destination uint16) {
	return uint16(controlled[0] >> 16), uint16(controlled[0])
}

// OfPorts returns the controlled fields of two ports.
func OfPorts(source, destination uint16) Number {
	return Number{uint64(source)<<16 | uint64(destination)}
}

// SourcePorts returns the source ports between low and high that lead a flow to a destination port along a path, in
// ascending order and at most limit. Servers listen on a few ports, so a client often controls its own port only:
// about one of radix^len(path) ports fits. The scheme controls 32 bits.
func (s *Scheme) SourcePorts(path []Choice, u Uncontrolled, destination, low, high uint16, limit int) ([]uint16, error) {
	digits, err := s.digits(path, u)
	if err != nil {
		return nil, err
	}
	var found []uint16
	for port := int(low); port <= int(high) && len(found) < limit; port++ {
		if s.matches(s.permutation.Inverse(OfPorts(uint16(port), destination)), digits) {
			found = append(found, uint16(port))
		}
	}
	return found, nil
}

func (s *Scheme) matches(p Number, digits []int) bool {
	for _, want := range digits {
		var digit uint64
		p, digit = p.divMod(s.radix)
		if want >= 0 && int(digit) != want {
			return false
		}
	}
	return true
}
