//! Messages about ended runs, to a real listener.
