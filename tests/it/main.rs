mod captures;
mod nsys;
